use loraloom_scheduler::{NaiveRoom, OneTaskPerGroup, Room, TaskId};

use super::support::{MODEL, Tokens, task};

#[test]
fn one_task_has_a_device_to_itself() {
    let devices = vec![Tokens(1000), Tokens(5000)];
    let mut room = OneTaskPerGroup::new(devices, Some(MODEL)).expect("two devices");
    let (large, small) = (task(0, 8, 4, 1000), task(1, 8, 4, 100));
    assert_eq!(room.place(&large, None), Ok(1));
    assert_eq!(room.place(&small, Some(1)), Ok(0));
    let refusal = room
        .place(&task(2, 8, 1, 10), None)
        .expect_err("no device left");
    assert_eq!(
        refusal.reason,
        "each of the 2 devices that could hold it has its task"
    );
    let refusal = room
        .place(&task(3, 8, 8, 1000), None)
        .expect_err("too large for any");
    assert!(refusal.reason.contains("8000 tokens"), "{refusal:?}");

    // 0.05 + 0.002 + 4,000 · 54e-6.
    let seconds = room.seconds_per_step(TaskId(0)).expect("known");
    assert!((seconds - 0.268).abs() < 1e-12, "{seconds}");
    room.remove(TaskId(0));
    assert_eq!(room.groups().len(), 1);
    assert_eq!(
        (room.regroup(), room.seconds_per_step(TaskId(0))),
        (None, None)
    );
    assert_eq!(room.place(&task(4, 8, 4, 1000), Some(1)), Ok(1));
    room.clear();
    assert!(room.groups().is_empty());
}

#[test]
fn all_that_fits_is_padded_to_the_longest_and_fills_devices_in_order() {
    let mut room = NaiveRoom::new(vec![Tokens(8000); 2], Some(MODEL)).expect("two devices");
    assert_eq!(room.place(&task(0, 8, 4, 1000), None), Ok(0));
    // Four rows of 100 tokens take as much memory as four of 1,000.
    assert_eq!(room.place(&task(1, 8, 4, 100), None), Ok(0));
    assert_eq!(room.place(&task(2, 8, 4, 100), None), Ok(1));
    assert_eq!(room.place(&task(3, 8, 4, 1000), None), Ok(1));
    let refusal = room.place(&task(4, 8, 1, 10), None).expect_err("full");
    assert_eq!(
        refusal.reason,
        "device 1: 9000 tokens of 3 tasks, room for 8000"
    );
    assert_eq!(room.regroup(), None);

    // 0.05 + 2 · 0.002 + 4,400 · 54e-6 + 3,600 · 50e-6: the short task waits for all of it.
    for id in [0, 1] {
        let seconds = room.seconds_per_step(TaskId(id)).expect("known");
        assert!((seconds - 0.4716).abs() < 1e-12, "{seconds}");
    }
    room.remove(TaskId(0));
    assert_eq!(room.place(&task(4, 8, 4, 1000), Some(1)), Ok(0));
    assert!(
        room.groups()
            .iter()
            .flatten()
            .all(|member| member.parts == 1)
    );
}
