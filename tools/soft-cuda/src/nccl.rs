//! The part of NCCL's interface by which CubeCL moves tensors from device to device. It is found where
//! this library is also called `libnccl.so`; without, tensors go by way of the host.

use std::{
    collections::{HashMap, VecDeque},
    env,
    ffi::{c_int, c_void},
    slice,
    sync::{
        Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

type Status = c_int;
const SUCCESS: Status = 0;
const INTERNAL_ERROR: Status = 3;
const INVALID_ARGUMENT: Status = 4;

/// Who waits longer than this has been forgotten.
const PATIENCE: Duration = Duration::from_secs(60);

/// `ncclUniqueId`: its first bytes are a number.
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// Devices that send to each other.
#[derive(Default)]
struct Group {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ranks: usize,
    /// What was sent from one rank to another and not received.
    sent: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
}

impl Group {
    /// Waits until something is so.
    fn wait(&self, wanted: impl Fn(&State) -> bool) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !wanted(state));
        let (state, late) = waited.unwrap_or_else(PoisonError::into_inner);
        (!late.timed_out()).then_some(state)
    }
}

/// `ncclComm_t`: one rank of a group.
pub struct Communicator {
    group: Arc<Group>,
    rank: usize,
}

static GROUPS: LazyLock<Mutex<HashMap<u64, Arc<Group>>>> = LazyLock::new(Mutex::default);

fn bytes(count: usize, kind: c_int) -> Option<usize> {
    let size = match kind {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    };
    Some(count * size)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = unsafe { &mut (*id).0 };
    id.fill(0);
    id[..8].copy_from_slice(&number.to_le_bytes());
    SUCCESS
}

/// Waits for the others of the group, as NCCL does.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(
    communicator: *mut *mut Communicator,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> Status {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let group = groups
        .entry(u64::from_le_bytes(number))
        .or_default()
        .clone();
    drop(groups);
    group
        .state
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .ranks += 1;
    group.changed.notify_all();
    if group.wait(|state| state.ranks == ranks as usize).is_none() {
        eprintln!("soft-cuda: rank {rank} of {ranks} waits for the others in vain");
        return INTERNAL_ERROR;
    }
    let made = Communicator {
        group: group.clone(),
        rank: rank as usize,
    };
    unsafe { *communicator = Box::into_raw(Box::new(made)) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    source: *const u8,
    count: usize,
    kind: c_int,
    peer: c_int,
    communicator: *const Communicator,
    _stream: *mut c_void,
) -> Status {
    let Some(bytes) = bytes(count, kind) else {
        return INVALID_ARGUMENT;
    };
    let Communicator { group, rank } = unsafe { &*communicator };
    let sent = unsafe { slice::from_raw_parts(source, bytes) }.to_vec();
    if env::var_os("SOFT_CUDA_TRACE").is_some() {
        eprintln!("soft-cuda: {bytes} bytes from {rank} to {peer}");
    }
    let mut state = group.state.lock().unwrap_or_else(PoisonError::into_inner);
    state
        .sent
        .entry((*rank, peer as usize))
        .or_default()
        .push_back(sent);
    group.changed.notify_all();
    SUCCESS
}

/// Waits for what is sent: NCCL has its stream wait.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    target: *mut u8,
    count: usize,
    kind: c_int,
    peer: c_int,
    communicator: *const Communicator,
    _stream: *mut c_void,
) -> Status {
    let Some(bytes) = bytes(count, kind) else {
        return INVALID_ARGUMENT;
    };
    let Communicator { group, rank } = unsafe { &*communicator };
    let way = (peer as usize, *rank);
    let there = |state: &State| state.sent.get(&way).is_some_and(|sent| !sent.is_empty());
    let received = group
        .wait(there)
        .and_then(|mut state| state.sent.get_mut(&way)?.pop_front());
    match received {
        Some(received) if received.len() == bytes => {
            unsafe { target.copy_from_nonoverlapping(received.as_ptr(), bytes) };
            SUCCESS
        }
        Some(received) => {
            eprintln!(
                "soft-cuda: {bytes} bytes expected of {peer}, {} came",
                received.len()
            );
            INVALID_ARGUMENT
        }
        None => {
            eprintln!("soft-cuda: rank {rank} waits for {peer} in vain");
            INTERNAL_ERROR
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, thread};

    use super::{
        INVALID_ARGUMENT, SUCCESS, UniqueId, ncclCommInitRank, ncclGetUniqueId, ncclRecv, ncclSend,
    };

    #[test]
    fn what_one_rank_sends_the_other_receives_in_order() {
        const FLOAT: i32 = 7;
        let mut id = UniqueId([0; 128]);
        assert_eq!(unsafe { ncclGetUniqueId(&raw mut id) }, SUCCESS);
        let bytes = id.0;
        let join = |rank| {
            let mut communicator = ptr::null_mut();
            let joined =
                unsafe { ncclCommInitRank(&raw mut communicator, 2, UniqueId(bytes), rank) };
            assert_eq!(joined, SUCCESS);
            communicator
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let communicator = join(0);
                for part in [[1f32, 2.0], [3.0, 4.0]] {
                    let from = part.as_ptr().cast();
                    let sent =
                        unsafe { ncclSend(from, 2, FLOAT, 1, communicator, ptr::null_mut()) };
                    assert_eq!(sent, SUCCESS);
                }
            });
            let communicator = join(1);
            let mut parts = [[0f32; 2]; 2];
            let receive = |to: *mut f32, count| unsafe {
                ncclRecv(to.cast(), count, FLOAT, 0, communicator, ptr::null_mut())
            };
            assert_eq!(receive(parts[0].as_mut_ptr(), 2), SUCCESS);
            assert_eq!(receive(parts[1].as_mut_ptr(), 1), INVALID_ARGUMENT);
            assert_eq!(parts, [[1.0, 2.0], [0.0, 0.0]]);
        });
    }
}
