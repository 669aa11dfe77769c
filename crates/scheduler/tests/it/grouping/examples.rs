use loraloom_scheduler::{
    Coefficients, DeviceMemory, GroupedRoom, GroupingOptions, MemoryModel, Room, SchedulerError,
    StepTimeModel, Task, TaskId,
};

use super::{
    reference::Devices,
    support::{MODEL, Tokens, devices, find, pipeline, task},
};

const ON_A_DEVICE: Devices = Devices {
    pipeline: false,
    model: MODEL,
};

fn sizes(room: &impl Room) -> Vec<usize> {
    room.groups().iter().map(Vec::len).collect()
}

#[test]
fn nano_batches_keep_a_short_task_from_waiting_for_a_long_one() {
    let unbounded = GroupingOptions {
        max_slowdown: f64::INFINITY,
        ..GroupingOptions::default()
    };
    // 0.05 + 0.002 + 1,024 · 54e-6 = 0.107 s and 0.05 + 0.002 + 16,384 · 54e-6 = 0.937 s alone.
    let (short, long) = (task(0, 8, 8, 128), task(1, 8, 8, 2048));
    for (options, parts, of_short, of_long) in [
        // 0.994 s an iteration, half of which is nine times what a short step takes alone.
        (unbounded, 1, 4.632, 0.531),
        // 0.220 s an iteration: the short step takes 1.02 times its share, the long one 0.94.
        (GroupingOptions::default(), 8, 1.025, 0.939),
    ] {
        let mut room = devices(1, options);
        room.use_step_times(MODEL);
        for task in [&short, &long] {
            assert_eq!(room.place(task, None), Ok(0));
        }
        let (_, member) = find(&room, long.id).expect("it is there");
        assert_eq!(member.parts, parts);
        assert_eq!(find(&room, short.id).expect("it is there").1.parts, 1);
        let group = [(&short, 1), (&long, parts)];
        for ((task, parts), expected) in group.into_iter().zip([of_short, of_long]) {
            let slowdown = ON_A_DEVICE.slowdown(&group, task, parts);
            assert!((slowdown - expected).abs() < 1e-3, "{slowdown} {expected}");
        }
    }
}

/// Eight batches that are accumulated are eight passes, in however many parts they are taken.
#[test]
fn accumulated_batches_are_passes_each() {
    let short = task(0, 8, 8, 128);
    let long = Task {
        passes_per_step: 8,
        max_parts: 8,
        ..task(1, 8, 8, 2048)
    };
    let mut room = devices(1, GroupingOptions::default());
    room.use_step_times(MODEL);
    room.place(&long, None).expect("an empty room");
    // 8 · 0.052 + 16,384 · 54e-6 s alone.
    let seconds = room.seconds_per_step(long.id).expect("known");
    assert!((seconds - 1.3007).abs() < 1e-3, "{seconds}");
    room.place(&short, None).expect("the long step is spread");
    let (_, member) = find(&room, long.id).expect("it is there");
    assert_eq!(member.parts, 8);
    // A pass of both, eight times.
    let seconds = room.seconds_per_step(long.id).expect("known");
    assert!((seconds - 8.0 * 0.2199).abs() < 1e-3, "{seconds}");
}

/// A step of one of k tasks may take k · `max_slowdown` times its seconds alone: k · 1 is its share.
#[test]
fn the_bound_is_on_what_neighbours_cost_beyond_a_tasks_share() {
    let mut room = devices(1, GroupingOptions::default());
    room.use_step_times(MODEL);
    let task = |id| task(id, 8, 8, 512);
    room.place(&task(0), None).expect("an empty room");
    let alone = room.seconds_per_step(TaskId(0)).expect("known");
    for id in 1..8 {
        room.place(&task(id), None).expect("no task is slowed down");
    }
    let seconds = room.seconds_per_step(TaskId(0)).expect("known");
    assert!(seconds > 6.0 * alone, "{seconds} {alone}");
    assert!(seconds < 8.0 * alone, "{seconds} {alone}");
}

#[test]
fn a_long_step_of_one_row_is_refused_beside_a_short_one() {
    let mut room = devices(1, GroupingOptions::default());
    room.use_step_times(MODEL);
    room.place(&task(0, 8, 8, 128), None)
        .expect("an empty room");
    let before = room.groups();
    let refusal = room
        .place(&task(1, 8, 1, 16384), None)
        .expect_err("too long");
    assert_eq!(
        refusal.reason,
        "with `adapter-1` the slowdown of a task would be at least 4.41, and max_slowdown is 1.2"
    );
    assert_eq!(room.groups(), before);
    // Where it is known, a device of its own is fine.
    let mut room = devices(2, GroupingOptions::default());
    room.use_step_times(MODEL);
    assert_eq!(room.place(&task(0, 8, 8, 128), None), Ok(0));
    assert_eq!(room.place(&task(1, 8, 1, 16384), None), Ok(1));
}

/// They came together before their times were known. Beyond the bound, a long step is still spread as far
/// as that helps the short one.
#[test]
fn tasks_that_keep_their_places_keep_their_parts() {
    let options = GroupingOptions {
        keep_places: true,
        ..GroupingOptions::default()
    };
    let mut room = devices(1, options);
    let tasks = [task(0, 8, 8, 128), task(1, 8, 2, 8192)];
    let place = |room: &mut GroupedRoom<Tokens>, group| {
        room.clear();
        for task in &tasks {
            assert_eq!(room.place(task, group), Ok(0));
        }
        room.groups()[0]
            .iter()
            .map(|member| member.parts)
            .collect::<Vec<_>>()
    };
    assert_eq!(place(&mut room, None), [1, 1]);
    room.use_step_times(MODEL);
    for _ in 0..2 {
        assert_eq!(place(&mut room, Some(0)), [1, 2]);
    }
    // 2.57 times its share; 4.63 times with a whole step beside it.
    let [short, long] = &tasks;
    let slowdown = |parts| ON_A_DEVICE.slowdown(&[(short, 1), (long, parts)], short, 1);
    assert!((1.2..slowdown(1)).contains(&slowdown(2)));
}

#[test]
fn a_pipeline_has_as_many_groups_as_stages_before_any_has_two_tasks() {
    for known in [false, true] {
        let mut room = pipeline(3, GroupingOptions::default());
        if known {
            room.use_step_times(MODEL);
        }
        let mut counts = Vec::new();
        for id in 0..5 {
            room.place(&task(id, 8, 4, 256), None).expect("no limits");
            counts.push(sizes(&room));
        }
        assert_eq!(counts[1], [1, 1]);
        assert_eq!(counts[2], [1, 1, 1]);
        assert_eq!(counts[4], [2, 2, 1]);

        // The pipeline stays full as tasks end: one that had company moves, with a reason.
        room.remove(TaskId(2));
        assert_eq!(room.regroup().as_deref(), Some("group 2 was empty"));
        assert_eq!(sizes(&room).iter().min(), Some(&1));
        for id in [0, 1] {
            room.remove(TaskId(id));
        }
        room.regroup();
        assert_eq!(sizes(&room), [1, 1]);
        assert_eq!(room.regroup(), None);
    }
}

#[test]
fn nobody_is_refused_for_what_is_not_known() {
    let mut room = devices(2, GroupingOptions::default());
    let lengths = [2048, 64, 64, 1024, 512, 700];
    for (id, length) in lengths.into_iter().enumerate() {
        room.place(&task(id as u64, 8, 1, length), None)
            .expect("no limits");
    }
    // Each went to the group with the fewest tokens: 2048 and 64, 64, 1024, 512, 700.
    assert_eq!(sizes(&room), [1, 5]);
    assert_eq!(room.seconds_per_step(TaskId(0)), None);
    assert_eq!(
        room.regroup().as_deref(),
        Some("moved 2 tasks: the largest group has 2236 tokens, not 2364")
    );

    // Placed badly, they are spread by their tokens.
    let mut room = devices(2, GroupingOptions::default());
    for (id, length) in lengths.into_iter().enumerate() {
        let group = usize::from(id == 1);
        room.place(&task(id as u64, 8, 1, length), Some(group))
            .expect("no limits");
    }
    assert_eq!(
        room.regroup().as_deref(),
        Some("moved 4 tasks: the largest group has 2236 tokens, not 4348")
    );
}

#[test]
fn memory_is_shared_in_a_pipeline_and_not_among_devices() {
    let options = GroupingOptions::default();
    let two = 2.try_into().expect("positive");
    let mut shared = GroupedRoom::shared(two, vec![Tokens(5000), Tokens(2500)], options)
        .expect("usable options");
    let mut apart =
        GroupedRoom::per_group(vec![Tokens(5000), Tokens(2500)], options).expect("usable options");
    let tasks: Vec<_> = (0..4).map(|id| task(id, 8, 4, 500)).collect();
    assert_eq!(shared.place(&tasks[0], None), Ok(0));
    let refusal = shared.place(&tasks[1], None).expect_err("4,000 tokens");
    assert_eq!(
        refusal.reason,
        "device 1: 4000 tokens of 2 tasks, room for 2500"
    );
    let places: Vec<_> = tasks
        .iter()
        .map(|task| apart.place(task, None).ok())
        .collect();
    assert_eq!(places, [Some(0), Some(1), Some(0), None]);
    assert!(apart.admits_alone(&task(9, 8, 10, 500)).is_ok());
    assert!(shared.admits_alone(&task(9, 8, 10, 500)).is_err());
}

#[test]
fn small_corrections_of_the_model_are_not_followed() {
    let mut room = devices(1, GroupingOptions::default());
    assert!(room.use_step_times(MODEL));
    room.place(&task(0, 8, 8, 512), None)
        .expect("an empty room");
    let slower = |factor: f64| StepTimeModel {
        pass: MODEL.pass * factor,
        token: MODEL.token * factor,
        ..MODEL
    };
    assert!(!room.use_step_times(slower(1.03)));
    assert!(room.use_step_times(slower(1.2)));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let with = |max_slowdown| {
        let options = GroupingOptions {
            max_slowdown,
            ..GroupingOptions::default()
        };
        GroupedRoom::per_group(vec![Tokens(1)], options).map(|_| ())
    };
    for (bound, found) in [(0.9, "0.9"), (f64::NAN, "NaN")] {
        let message = with(bound).expect_err("a bound below 1").to_string();
        let expected = format!("max_slowdown is {found}, but the slowdown of a task alone is 1");
        assert!(message.starts_with(&expected), "{message}");
    }
    assert_eq!(with(f64::INFINITY), Ok(()));
    let none = GroupedRoom::<Tokens>::per_group(Vec::new(), GroupingOptions::default());
    assert_eq!(none.map(|_| ()), Err(SchedulerError::NoDevices));
}

#[test]
fn step_times_of_other_stages_are_left() {
    let room = |stages: usize, devices: &[(&str, f64)]| {
        let device = |&(name, per_token): &(&str, f64)| {
            let prior = Coefficients::new(0.0, per_token, 0.0).expect("coefficients");
            let memory = DeviceMemory::new(name, 1 << 40, 0, 1.0, MemoryModel::new(prior, 1));
            memory.expect("a device")
        };
        let stages = stages.try_into().expect("a stage");
        let devices = devices.iter().map(device).collect();
        GroupedRoom::shared(stages, devices, GroupingOptions::default()).expect("usable options")
    };
    let two = [("a", 1.0), ("b", 1.0)];
    let mut before = room(2, &two);
    assert!(before.use_step_times(MODEL));
    let learnt = before.learnt().expect("it learns");
    let alone = task(0, 8, 8, 512);
    for (stages, devices, restored) in [
        (2, &two[..], true),
        (3, &two, false),
        (2, &two[..1], false),
        (2, &[two[0], two[1], ("c", 1.0)], false),
        (2, &[two[0], ("b", 2.0)], false),
    ] {
        let mut after = room(stages, devices);
        after.remember(learnt.clone());
        after.place(&alone, None).expect("an empty room");
        let found = after.seconds_per_step(alone.id).is_some();
        assert_eq!(found, restored, "{stages} {devices:?}");
    }
}
