use rusqlite::Row;

use crate::{
    QueueError,
    label::{check_name, check_text},
};

/// A task as its owner describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The adapter's name, by the rule of configuration files.
    pub name: String,
    /// Who asks for it.
    pub tenant: String,
    /// Larger runs first.
    pub priority: i64,
    /// What is to be trained: adapter and dataset, every default filled in. Opaque here.
    pub spec: String,
    /// Hash of the dataset's content.
    pub dataset_hash: String,
    /// Optimizer steps until it is done, if known.
    pub total_steps: Option<u64>,
    /// The sweep that it belongs to.
    pub sweep: Option<String>,
    /// Whoever is unsure whether a submission was accepted submits it again with the same key: it is
    /// accepted once.
    pub key: Option<String>,
}

impl Submission {
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        check_name(&self.name)?;
        check_text("tenant", &self.tenant)?;
        if let Some(sweep) = &self.sweep {
            check_text("sweep", sweep)?;
        }
        self.key
            .as_ref()
            .map_or(Ok(()), |key| check_text("key", key))
    }

    /// BLAKE3 of what never changes: all fields but `total_steps`, which the server may learn later.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut field = |text: Option<&str>| {
            // Lengths keep apart what concatenation would not, and a missing text from an empty one.
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

    /// The fields, without `total_steps`, in which two submissions differ.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
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
    pub(crate) const COLUMNS: &str =
        "name, tenant, priority, spec.text, dataset_hash, total_steps, sweep, key";

    /// Number of the columns.
    pub(crate) const WIDTH: usize = 8;

    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
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
