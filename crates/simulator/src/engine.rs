use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use loraloom_scheduler::{
    Decision, Load, MeasuredIteration, MeasuredTask, Measurement, Room, Scheduler, TaskId,
    TaskOutcome, TaskState, Work,
};

use super::{
    ClockStep, Costs, DecisionTime, Devices, Job, JobCounts, Padding, Replay, ReplayedJob,
    SimulationError,
    costs::Share,
    device::{Device, IterationRun, devices_for},
    fairness::Fairness,
    progress::{Progress, UNITS},
    random::Random,
    replay::{MOST_YEARS, YEAR},
};

/// Replays jobs on a virtual clock. It counts whole nanoseconds and fixed parts of steps, so that
/// [`ClockStep::Events`] and [`ClockStep::Iterations`] give the same bits.
///
/// A decision takes effect on each device when its iteration ends; a task that moves waits for the end of
/// its iteration. Parking and moving take no time.
///
/// # Errors
/// [`SimulationError`] if the scheduler refuses a task, leaves jobs waiting for ever, or the replay takes more
/// than a hundred years of its clock.
pub fn replay<R: Room>(
    jobs: &[Job],
    devices: Devices,
    scheduler: Scheduler<R>,
    step: ClockStep,
) -> Result<Replay, SimulationError> {
    devices.costs.validate()?;
    let mut clock = Clock::new(jobs, devices, scheduler, step);
    while let Some(now) = clock.next_event() {
        // Beyond the range of the clock, the last event would come again for ever.
        if seconds(now) > MOST_YEARS * YEAR {
            return Err(SimulationError::too_long(seconds(now)));
        }
        clock.advance(now)?;
    }
    clock.finished()
}

struct Clock<R> {
    scheduler: Scheduler<R>,
    step: ClockStep,
    costs: Costs,
    padding: Padding,
    noise: (f64, Random),
    /// Nanoseconds.
    decide_every: Option<u64>,
    last_decision: u64,
    devices: Vec<Device>,
    jobs: Vec<Progress>,
    places: BTreeMap<TaskId, usize>,
    /// Number of jobs that have arrived, in their order.
    arrived: usize,
    /// Jobs that the scheduler is not told of yet: when it will be, and their places in `jobs`.
    unsubmitted: BTreeSet<(u64, usize)>,
    waiting: Vec<usize>,
    fairness: Fairness,
    replay: Replay,
}

impl<R: Room> Clock<R> {
    fn new(jobs: &[Job], devices: Devices, scheduler: Scheduler<R>, step: ClockStep) -> Self {
        let mut tenants = BTreeMap::new();
        let mut order: Vec<&Job> = jobs.iter().collect();
        order.sort_by_key(|job| job.arrival);
        let job = |job: &&Job| {
            let next = tenants.len();
            let tenant = tenants.entry(job.task.tenant.clone()).or_insert(next);
            Progress::of(job, *tenant)
        };
        let jobs: Vec<Progress> = order.iter().map(job).collect();
        let tenants = tenants.len();
        Self {
            scheduler,
            step,
            costs: devices.costs,
            padding: devices.padding,
            noise: (devices.noise, Random::new(devices.seed)),
            decide_every: devices.decide_every.map(|s| ((s * 1e9) as u64).max(1)),
            last_decision: 0,
            devices: (0..devices.count).map(|_| Device::default()).collect(),
            places: (jobs.iter().map(|job| job.task.id).zip(0..)).collect(),
            unsubmitted: (jobs.iter().map(|job| job.submitted).zip(0..)).collect(),
            jobs,
            arrived: 0,
            waiting: vec![0; tenants],
            fairness: Fairness::new(tenants),
            replay: Replay {
                devices: devices.count,
                ..Replay::default()
            },
        }
    }

    /// Time of the next arrival, submission, end of a run of iterations, or decision without news.
    fn next_event(&self) -> Option<u64> {
        let arrival = self.jobs.get(self.arrived).map(|job| job.arrival);
        let submission = self.unsubmitted.first().map(|&(time, _)| time);
        let runs = self.devices.iter().filter_map(|d| d.run.as_ref());
        let end = runs.map(IterationRun::end).min();
        let due = end.and(self.due());
        let times = [arrival, submission, end, due];
        times.into_iter().flatten().min()
    }

    fn due(&self) -> Option<u64> {
        Some(self.last_decision.saturating_add(self.decide_every?))
    }

    fn advance(&mut self, now: u64) -> Result<(), SimulationError> {
        for device in 0..self.devices.len() {
            self.count(device, now)?;
        }
        let mut news = self.due().is_some_and(|due| due <= now);
        for device in 0..self.devices.len() {
            news |= self.end(device, now)?;
        }
        while let Some(job) = self.jobs.get(self.arrived).filter(|j| j.arrival <= now) {
            self.waiting[job.tenant] += 1;
            self.arrived += 1;
            news = true;
            if self.arrived == self.jobs.len() {
                self.replay.tokens_while_arriving = self.tokens();
            }
        }
        while let Some(&(time, job)) = self.unsubmitted.first()
            && time <= now
        {
            self.unsubmitted.pop_first();
            self.scheduler
                .submit(self.jobs[job].task.clone(), seconds(now))?;
            news = true;
        }
        if news || self.step == ClockStep::Decisions {
            self.decide(now);
        }
        while (0..self.devices.len()).any(|device| self.interrupt(device, now)) {}
        for device in 0..self.devices.len() {
            self.begin(device, now);
        }
        Ok(())
    }

    fn tokens(&self) -> u64 {
        (self.fairness.total() / u128::from(UNITS)) as u64
    }

    /// Counts the iterations of a device that have ended by now.
    fn count(&mut self, device: usize, now: u64) -> Result<(), SimulationError> {
        let Some(run) = self.devices[device].run.as_mut() else {
            return Ok(());
        };
        let iterations = run.count(now);
        if iterations == 0 {
            return Ok(());
        }
        self.replay.iterations += iterations;
        self.replay.busy_nanoseconds += u128::from(iterations) * u128::from(run.period);
        if run.bytes > self.costs.device_bytes {
            self.replay.iterations_out_of_memory += iterations;
        }
        for member in &run.members {
            let job = &mut self.jobs[self.places[&member.task]];
            let units = job.advance(iterations, member.parts);
            let service = u128::from(units) * job.task.tokens_per_step as u128;
            self.fairness.serve(job.tenant, service);
            // Steps of a task that was parked during an iteration are reported when it goes on.
            let steps = job.steps() - job.told;
            if steps > 0 && self.scheduler.state(member.task) == Some(TaskState::Running) {
                job.told += steps;
                let tokens = (steps * job.task.tokens_per_step) as u64;
                self.scheduler.progress(member.task, steps, tokens)?;
            }
        }
        Ok(())
    }

    /// Ends a run of iterations that is due, and returns whether that is news for the scheduler.
    fn end(&mut self, device: usize, now: u64) -> Result<bool, SimulationError> {
        let slot = &mut self.devices[device];
        let Some(run) = slot.run.take_if(|run| run.end() == now) else {
            return Ok(false);
        };
        let mut news = slot.measured != run.members;
        if news {
            slot.measured.clone_from(&run.members);
            self.measure(&run)?;
        }
        for member in &run.members {
            let job = &mut self.jobs[self.places[&member.task]];
            job.on = None;
            if job.is_complete() {
                if !job.has_place {
                    self.waiting[job.tenant] -= 1;
                }
                job.finished = Some(now);
                job.has_place = false;
                self.scheduler
                    .finish(member.task, TaskOutcome::Done, seconds(now))?;
                news = true;
            }
        }
        Ok(news)
    }

    fn decide(&mut self, now: u64) {
        self.last_decision = now;
        let waiting = self.waiting.iter().sum();
        let begun = Instant::now();
        let decision = self.scheduler.decide(seconds(now));
        let seconds = begun.elapsed().as_secs_f64();
        self.replay
            .decisions
            .push(DecisionTime { waiting, seconds });
        self.replay.preemptions += decision.parked.len();
        self.replay.regroupings += usize::from(decision.regrouped.is_some());
        self.apply(now, &decision);
        // At decisions and not at every event, so that it does not depend on how the clock advances.
        self.fairness.observe();
        let waits: Vec<bool> = self.waiting.iter().map(|&count| count > 0).collect();
        self.fairness.wait(&waits);
        let counts = JobCounts {
            nanoseconds: now,
            running: decision.groups.iter().map(Vec::len).sum(),
            waiting: self.waiting.iter().sum(),
        };
        let last = self.replay.job_counts.last();
        if last.is_none_or(|last| (last.running, last.waiting) != (counts.running, counts.waiting))
        {
            self.replay.job_counts.push(counts);
        }
    }

    /// Reports an iteration to the scheduler, without its steps, which were reported before.
    fn measure(&mut self, run: &IterationRun) -> Result<(), SimulationError> {
        let (relative, random) = &mut self.noise;
        let factor = (1.0 + *relative * random.normal()).max(0.1);
        let tasks = run
            .members
            .iter()
            .map(|member| (&self.jobs[self.places[&member.task]].task, member.parts));
        let bytes = Measurement {
            peak_in_use_bytes: Some(run.bytes as u64),
            reserved_bytes: None,
        };
        let running = |task: &TaskId| self.scheduler.state(*task) == Some(TaskState::Running);
        let iteration = MeasuredIteration {
            work: Work::of_group(tasks.clone()),
            load: tasks
                .clone()
                .map(|(task, parts)| part_of(task.load, parts))
                .sum(),
            tasks: tasks
                .map(|(task, _)| task.id)
                .filter(running)
                .map(|task| MeasuredTask {
                    task,
                    steps: 0,
                    tokens: 0,
                })
                .collect(),
            seconds: seconds(run.period) * factor,
            // Devices are alike: the measurement holds for all.
            memory: vec![bytes; self.devices.len()],
        };
        Ok(self.scheduler.measured(&iteration)?)
    }

    fn apply(&mut self, now: u64, decision: &Decision) {
        let mut running = vec![false; self.jobs.len()];
        for member in decision.groups.iter().flatten() {
            running[self.places[&member.task]] = true;
        }
        for (job, runs) in self.jobs.iter_mut().zip(running).take(self.arrived) {
            match (job.has_place, runs) {
                (false, true) => self.waiting[job.tenant] -= 1,
                (true, false) => self.waiting[job.tenant] += 1,
                _ => {}
            }
            job.has_place = runs;
            if runs {
                job.started.get_or_insert(now);
            }
        }
        let chosen = devices_for(&decision.groups, &self.devices);
        for device in &mut self.devices {
            device.assigned.clear();
        }
        for (device, members) in chosen.into_iter().zip(&decision.groups) {
            self.devices[device].assigned.clone_from(members);
        }
    }

    /// True if no other device trains the job now.
    fn is_free_for(&self, device: usize, task: TaskId) -> bool {
        let job = &self.jobs[self.places[&task]];
        job.finished.is_none() && job.on.is_none_or(|on| on == device)
    }

    /// Stops a device at the end of its iteration if it is assigned other tasks. Returns whether that was
    /// now, so that its tasks are free.
    fn interrupt(&mut self, device: usize, now: u64) -> bool {
        let Some(run) = &self.devices[device].run else {
            return false;
        };
        let wanted = self.devices[device]
            .assigned
            .iter()
            .filter(|member| self.is_free_for(device, member.task));
        if wanted.eq(&run.members) {
            return false;
        }
        let slot = &mut self.devices[device];
        if let Some(run) = slot.run.take_if(|run| run.is_at_boundary(now)) {
            for member in &run.members {
                self.jobs[self.places[&member.task]].on = None;
            }
            return true;
        }
        if let Some(run) = &mut slot.run {
            run.cut();
        }
        false
    }

    /// Lets an idle device train its assigned tasks.
    fn begin(&mut self, device: usize, now: u64) {
        if self.devices[device].run.is_some() {
            return;
        }
        let mut members = self.devices[device].assigned.clone();
        members.retain(|member| self.is_free_for(device, member.task));
        if members.is_empty() {
            return;
        }
        let mut iterations = u64::MAX;
        let mut shares: Vec<Share> = Vec::with_capacity(members.len());
        for &member in &members {
            let job = &mut self.jobs[self.places[&member.task]];
            job.on = Some(device);
            iterations = iterations.min(job.iterations_left(member.parts));
            shares.push(job.share(member));
        }
        let bytes = self.costs.bytes(&shares, self.padding);
        self.replay.largest_bytes = self.replay.largest_bytes.max(bytes);
        let slot = &mut self.devices[device];
        if slot.measured != members || self.step != ClockStep::Events {
            iterations = 1;
        }
        slot.run = Some(IterationRun {
            members,
            begun: now,
            period: ((self.costs.seconds(&shares, self.padding) * 1e9) as u64).max(1),
            iterations,
            counted: 0,
            bytes,
        });
    }

    fn finished(mut self) -> Result<Replay, SimulationError> {
        let unfinished = || self.jobs.iter().filter(|job| job.finished.is_none());
        if let Some(first) = unfinished().next() {
            let last = self.replay.job_counts.last();
            return Err(SimulationError::Starved {
                waiting: unfinished().count(),
                first: first.task.name.clone(),
                seconds: last.map_or(0.0, |counts| seconds(counts.nanoseconds)),
            });
        }
        self.replay.tokens = self.tokens();
        self.replay.fairness_gap = (self.fairness.gap() / u128::from(UNITS)) as u64;
        let useful = self.jobs.iter().map(|job| job.useful_seconds(&self.costs));
        self.replay.useful_seconds = useful.sum();
        let replayed = |job: &Progress| ReplayedJob {
            arrival: job.arrival,
            started: job.started.unwrap_or(job.arrival),
            finished: job.finished.unwrap_or(job.arrival),
            steps: job.steps(),
        };
        self.replay.jobs = self.jobs.iter().map(replayed).collect();
        Ok(self.replay)
    }
}

/// Load of one of `parts` parts of a step.
fn part_of(load: Load, parts: usize) -> Load {
    let parts = parts.max(1) as u64;
    Load {
        tokens: load.tokens.div_ceil(parts),
        squared_tokens: load.squared_tokens.div_ceil(parts),
        adapter_bytes: load.adapter_bytes,
        certain_bytes: 0,
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
