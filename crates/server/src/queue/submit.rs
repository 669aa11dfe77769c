use std::{collections::BTreeSet, slice};

use loraloom_scheduler::{TaskId, TaskState};
use rusqlite::{Row, params};

use super::{
    EventKind, Queue, QueueError, Result,
    task::{Sql, get},
    write::Write,
};

const REASON: &str = "submitted";

/// A task as its owner describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The adapter's name, by the rule of configuration files.
    pub name: String,
    /// Its owner.
    pub tenant: String,
    /// Larger runs first.
    pub priority: i64,
    /// Adapter and dataset to train, with every default filled in. The queue does not interpret it.
    pub spec: String,
    /// Hash of the dataset's content.
    pub dataset_hash: String,
    /// Optimizer steps in all, if known.
    pub total_steps: Option<u64>,
    /// Its sweep.
    pub sweep: Option<String>,
    /// Idempotency key: a submission that is repeated with the same key is accepted once. `KEY/NAME` where
    /// several tasks share `KEY`.
    pub key: Option<String>,
}

impl Submission {
    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        check_text("tenant", &self.tenant)?;
        if let Some(sweep) = &self.sweep {
            check_text("sweep", sweep)?;
        }
        self.shared_key()
            .map_or(Ok(()), |key| check_text("key", key))
    }

    /// The key of all tasks of its submission: [`Self::key`] without the name.
    fn shared_key(&self) -> Option<&str> {
        let own = self.key.as_deref()?;
        let shared = own.strip_suffix(&*self.name);
        Some(shared.and_then(|key| key.strip_suffix('/')).unwrap_or(own))
    }

    /// BLAKE3 of the fields that never change: all but `total_steps`, which the server may learn later.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut field = |text: Option<&str>| {
            // The length separates fields, and a missing text from an empty one.
            let length = text.map_or(u64::MAX, |text| text.len() as u64);
            hasher.update(&length.to_le_bytes());
            hasher.update(text.unwrap_or_default().as_bytes());
        };
        field(Some(&self.name));
        field(Some(&self.tenant));
        field(Some(&self.spec));
        field(Some(&self.dataset_hash));
        field(self.sweep.as_deref());
        field(self.key.as_deref());
        hasher.update(&self.priority.to_le_bytes());
        hasher.finalize().into()
    }

    /// The fields under the digest in which two submissions differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        [
            ("name", self.name != other.name),
            ("tenant", self.tenant != other.tenant),
            ("priority", self.priority != other.priority),
            ("spec", self.spec != other.spec),
            ("dataset", self.dataset_hash != other.dataset_hash),
            ("sweep", self.sweep != other.sweep),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }

    /// The columns that [`Submission::read`] expects, in its order, of `task` joined with `spec`.
    pub(super) const COLUMNS: &str =
        "name, tenant, priority, spec.text, dataset_hash, total_steps, sweep, key";

    /// Number of the columns.
    pub(super) const WIDTH: usize = 8;

    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            name: row.get(0)?,
            tenant: row.get(1)?,
            priority: row.get(2)?,
            spec: row.get(3)?,
            dataset_hash: row.get(4)?,
            total_steps: row.get(5)?,
            sweep: row.get(6)?,
            key: row.get(7)?,
        })
    }
}

/// A submission's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The task.
    pub id: TaskId,
    /// False if it was accepted before with the same key.
    pub new: bool,
}

impl Queue {
    /// Accepts a task; it is on the disk when this returns.
    ///
    /// If the key was used before for the same name, tenant, priority, specification, dataset and sweep,
    /// this returns the earlier task, whatever its state.
    ///
    /// # Errors
    /// [`QueueError::Invalid`], [`QueueError::NameTaken`], [`QueueError::SweepTaken`],
    /// [`QueueError::KeyTaken`], and SQLite's errors; nothing is accepted then.
    pub fn submit(&mut self, submission: &Submission) -> Result<Accepted> {
        let accepted = self.submit_all(slice::from_ref(submission))?;
        Ok(accepted[0])
    }

    /// Accepts several tasks in order, or none of them.
    ///
    /// # Errors
    /// As [`Queue::submit`], for the first that is refused; [`QueueError::KeyOfOthers`].
    pub fn submit_all(&mut self, submissions: &[Submission]) -> Result<Vec<Accepted>> {
        let (write, accepted) = self.accept_all(submissions)?;
        write.commit()?;
        Ok(accepted)
    }

    /// What [`Queue::submit_all`] would return now; nothing is accepted, and no number is reserved.
    ///
    /// # Errors
    /// As [`Queue::submit_all`].
    pub fn rehearse_all(&mut self, submissions: &[Submission]) -> Result<Vec<Accepted>> {
        let (_rolled_back, accepted) = self.accept_all(submissions)?;
        Ok(accepted)
    }

    fn accept_all(&mut self, submissions: &[Submission]) -> Result<(Write<'_>, Vec<Accepted>)> {
        submissions.iter().try_for_each(Submission::check)?;
        let write = self.write()?;
        write.refuse_other_set(submissions)?;
        let accepted: Vec<Accepted> = submissions
            .iter()
            .map(|submission| write.accept(submission))
            .collect::<Result<_, _>>()?;
        write.refuse_taken_sweeps(submissions, &accepted)?;
        Ok((write, accepted))
    }
}

impl Write<'_> {
    fn accept(&self, submission: &Submission) -> Result<Accepted> {
        if let Some(key) = &submission.key
            && let Some((id, existing)) = self.accepted_with(key)?
        {
            let differs = submission.differences(&existing);
            if differs.is_empty() {
                return Ok(Accepted { id, new: false });
            }
            return Err(QueueError::KeyTaken {
                key: submission.shared_key().unwrap_or(key).to_owned(),
                id,
                existing: existing.name,
                name: submission.name.clone(),
                differs,
            });
        }
        self.refuse_taken(&submission.name)?;
        let id = self.insert(submission)?;
        self.event(id, EventKind::Entered(TaskState::Queued), REASON)?;
        Ok(Accepted { id, new: true })
    }

    fn accepted_with(&self, key: &str) -> Result<Option<(TaskId, Submission)>> {
        let sql = format!(
            "SELECT {}, id FROM task JOIN spec ON spec.task = id WHERE key = ?1",
            Submission::COLUMNS
        );
        let read = |row: &Row<'_>| Ok((get(row, Submission::WIDTH)?, Submission::read(row)?));
        self.queue.row(&sql, [key], read)
    }

    /// Refuses a key with which other tasks were accepted before than those submitted with it now.
    fn refuse_other_set(&self, submissions: &[Submission]) -> Result<()> {
        let keys: BTreeSet<&str> = submissions
            .iter()
            .filter_map(Submission::shared_key)
            .collect();
        for key in keys {
            let names: BTreeSet<&str> = submissions
                .iter()
                .filter(|task| task.shared_key() == Some(key))
                .map(|task| &*task.name)
                .collect();
            let accepted = self.queue.select_tasks("key = ?1 || '/' || name", [key])?;
            let before: BTreeSet<&str> = accepted.iter().map(|task| &*task.name).collect();
            if !before.is_empty() && before != names {
                return Err(QueueError::KeyOfOthers {
                    key: key.to_owned(),
                    accepted: listed(&before),
                    names: listed(&names),
                });
            }
        }
        Ok(())
    }

    pub(super) fn refuse_taken(&self, name: &str) -> Result<()> {
        let sql = "SELECT id, state FROM task \
                   WHERE name = ?1 AND state IN ('queued', 'running', 'parked', 'paused')";
        let read = |row: &Row<'_>| Ok((get(row, 0)?, get(row, 1)?));
        match self.queue.row(sql, [name], read)? {
            None => Ok(()),
            Some((id, state)) => Err(QueueError::NameTaken {
                name: name.to_owned(),
                id,
                state,
            }),
        }
    }

    /// Refuses new tasks in a sweep that has tasks of another submission.
    fn refuse_taken_sweeps(&self, submissions: &[Submission], accepted: &[Accepted]) -> Result<()> {
        let new = submissions.iter().zip(accepted).filter(|(_, to)| to.new);
        let sweeps: BTreeSet<&str> = new.filter_map(|(task, _)| task.sweep.as_deref()).collect();
        let own: BTreeSet<TaskId> = accepted.iter().map(|task| task.id).collect();
        for sweep in sweeps {
            let tasks = self.queue.select_tasks("sweep = ?1", [sweep])?;
            if let Some(task) = tasks.into_iter().find(|task| !own.contains(&task.id)) {
                return Err(QueueError::SweepTaken {
                    sweep: sweep.to_owned(),
                    id: task.id,
                    name: task.name,
                    state: task.state,
                });
            }
        }
        Ok(())
    }

    fn insert(&self, submission: &Submission) -> Result<TaskId> {
        self.execute(
            "INSERT INTO task (name, tenant, priority, dataset_hash, sweep, key, state, reason, \
             explanation, step, saved_step, total_steps, submitted_at, changed) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, '', 0, 0, ?9, ?10, ?11)",
            params![
                submission.name,
                submission.tenant,
                submission.priority,
                submission.dataset_hash,
                submission.sweep,
                submission.key,
                Sql(TaskState::Queued),
                REASON,
                submission.total_steps,
                self.now,
                self.number,
            ],
        )?;
        let id = TaskId(self.queue.connection.last_insert_rowid().unsigned_abs());
        self.execute(
            "INSERT INTO spec (task, text, digest) VALUES (?1, ?2, ?3)",
            params![Sql(id), submission.spec, submission.digest()],
        )?;
        Ok(id)
    }
}

fn listed(names: &BTreeSet<&str>) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

const LONGEST: usize = 100;

/// Refuses a name that cannot be an adapter's directory, by the rule of configuration files.
fn check_name(name: &str) -> Result<()> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let problem = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.len() > LONGEST {
        format!("must have at most {LONGEST} characters, got {}", name.len())
    } else if let Some(bad) = name.chars().find(|c| !safe(*c)) {
        format!("names a directory: ASCII letters, digits, `.`, `_` and `-` only, found {bad:?}")
    } else if name.starts_with(['.', '-']) || name.ends_with('.') {
        "names a directory: it cannot start with `.` or `-` or end with `.`".to_owned()
    } else {
        return Ok(());
    };
    Err(bad("name", name, problem))
}

/// Refuses a text that cannot be shown on one line.
fn check_text(field: &'static str, text: &str) -> Result<()> {
    let problem = if text.is_empty() {
        "must not be empty".to_owned()
    } else if text.len() > LONGEST {
        format!("must have at most {LONGEST} bytes, got {}", text.len())
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("must have no control characters, found {control:?}")
    } else {
        return Ok(());
    };
    Err(bad(field, text, problem))
}

fn bad(field: &'static str, value: &str, problem: String) -> QueueError {
    QueueError::Invalid {
        field,
        value: value.chars().take(LONGEST).collect(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::Submission;

    #[test]
    fn a_digest_is_of_all_that_stays() {
        let task = Submission {
            name: "math".to_owned(),
            tenant: "default".to_owned(),
            priority: 0,
            spec: "{}".to_owned(),
            dataset_hash: "b3:00".to_owned(),
            total_steps: None,
            sweep: None,
            key: None,
        };
        let changed = |change: fn(&mut Submission)| {
            let mut other = task.clone();
            change(&mut other);
            other.digest() != task.digest()
        };
        assert!(changed(|task| task.name.push('x')));
        assert!(changed(|task| task.tenant.push('x')));
        assert!(changed(|task| task.priority = 1));
        assert!(changed(|task| task.spec.push(' ')));
        assert!(changed(|task| task.dataset_hash.push('1')));
        assert!(changed(|task| task.sweep = Some(String::new())));
        assert!(changed(|task| task.key = Some(String::new())));
        assert!(!changed(|task| task.total_steps = Some(9)));
    }
}
