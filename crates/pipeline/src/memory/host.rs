use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

/// Allocations of this process, where its program counts them: the memory of CPU stages, which Burn
/// does not track.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    /// Bytes allocated now.
    pub in_use: fn() -> u64,
    /// Peak of allocated bytes since the last call; resets the peak.
    pub take_peak: fn() -> u64,
    /// The same peak, without resetting it.
    pub peak: fn() -> u64,
}

static COUNTED: OnceLock<HostMemory> = OnceLock::new();

impl HostMemory {
    /// Installs the counters of this program; later calls have no effect. Without counters, CPU stages
    /// report no memory and keep to no limit.
    pub fn count_with(self) {
        let _ = COUNTED.set(self);
    }

    /// Bytes of memory that this process may use: the machine's, or the limit of its control group (a
    /// container's, a job's) where that is less. `None` where the machine does not report it.
    pub fn installed() -> Option<u64> {
        installed_below(Path::new("/"))
    }

    /// The installed counters.
    pub fn counted() -> Option<Self> {
        COUNTED.get().copied()
    }
}

/// As [`HostMemory::installed`], from the files below `root`.
fn installed_below(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let limits = control_group_limits(root);
    limits.chain(kibibytes.checked_mul(1024)).min()
}

/// The memory limits of this process's control group and of all groups around it. A group without a
/// limit has `max` (version 2), or a number above any memory (version 1).
fn control_group_limits(root: &Path) -> impl Iterator<Item = u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mount = root.join(mount);
        // In a namespace of its own a process sees a path relative to it, which may lead out of it.
        let within: PathBuf = Path::new(path)
            .components()
            .filter(|component| matches!(component, Component::Normal(_)))
            .collect();
        let group = mount.join(within);
        let around = group
            .ancestors()
            .take_while(|group| group.starts_with(&mount));
        files.extend(around.map(|group| group.join(file)));
    }
    let limit = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    files.into_iter().filter_map(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Memory of a machine of 16 GiB with these files.
    fn installed(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let machine = (
            "proc/meminfo",
            "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
        );
        for (file, text) in files.iter().chain([&machine]) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        installed_below(root.path())
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        assert_eq!(installed(&[]), Some(16 * GIB));
        let group = ("proc/self/cgroup", "0::/system.slice/job.scope\n");
        let outer = ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
        let inner = (
            "sys/fs/cgroup/system.slice/job.scope/memory.max",
            "4294967296\n",
        );
        let none = ("sys/fs/cgroup/system.slice/job.scope/memory.max", "max\n");
        let more = (
            "sys/fs/cgroup/system.slice/job.scope/memory.max",
            "68719476736\n",
        );
        let other = ("sys/fs/cgroup/user.slice/memory.max", "1024\n");
        assert_eq!(installed(&[group, inner, other]), Some(4 * GIB));
        assert_eq!(installed(&[group, inner, outer]), Some(2 * GIB));
        assert_eq!(installed(&[group, none, outer]), Some(2 * GIB));
        assert_eq!(installed(&[group, none]), Some(16 * GIB));
        assert_eq!(installed(&[group, more]), Some(16 * GIB));
    }

    #[test]
    fn a_container_finds_its_limit_at_the_mount() {
        let limit = ("sys/fs/cgroup/memory.max", "3221225472");
        for path in ["0::/\n", "0::/docker/0123\n", "0::/../../job\n"] {
            assert_eq!(
                installed(&[("proc/self/cgroup", path), limit]),
                Some(3 * GIB)
            );
        }
    }

    #[test]
    fn version_1_limits_count_as_well() {
        let groups = "11:cpu,cpuacct:/a\n7:memory:/docker/0123\n1:name=systemd:/a\n0::/\n";
        let group = ("proc/self/cgroup", groups);
        let own = (
            "sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes",
            "1073741824\n",
        );
        let mount = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
        let none = (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(installed(&[group, own, none]), Some(GIB));
        assert_eq!(installed(&[group, mount]), Some(2 * GIB));
        assert_eq!(installed(&[group, none]), Some(16 * GIB));
    }
}
