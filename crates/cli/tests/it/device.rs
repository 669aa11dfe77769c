//! Devices that are named and not there, and `doctor`.

use crate::support::Workspace;

#[test]
fn a_device_that_is_not_there_exits_with_5() {
    let here = Workspace::new();
    for device in ["cuda:99", "wgpu:99"] {
        let run = here.run(&["train", "loraloom.yaml", "--device", device]);
        assert_eq!(run.code, 5, "{}", run.all());
        assert!(run.stderr.starts_with("error: "), "{}", run.stderr);
        assert!(run.stderr.contains("\nhint: "), "{}", run.stderr);
        assert!(!here.path("runs").exists(), "a run was begun");
    }
}

#[test]
fn doctor_finds_the_cpu_and_looks_at_models() {
    let here = Workspace::new();
    let run = here.run(&["doctor", "--json", "--model", "tiny-llama"]);
    let json = run.json();
    assert_eq!(
        (run.code, json["ok"].as_bool()),
        (0, Some(true)),
        "{}",
        run.all()
    );
    let status = |name: &str| {
        let checks = json["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|check| check["name"] == name)
            .map(|check| check["status"].clone())
    };
    for name in ["version", "backends", "cpu", "model", "tokenizer"] {
        assert_eq!(status(name), Some("pass".into()), "{name}");
    }
    assert!(status("disk").is_some());
    let told = here.run(&["doctor"]).stdout;
    let cpu = told.lines().find(|line| line.starts_with("PASS  cpu: "));
    assert!(
        cpu.is_some_and(|line| line.contains(" GiB, computes")),
        "{told}"
    );
    assert_eq!(here.run(&["doctor", "--model", "nowhere"]).code, 3);
}
