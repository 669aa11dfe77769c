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
fn a_backend_the_build_lacks_is_named_with_the_command_that_builds_it() {
    let here = Workspace::new();
    let backends = here.run(&["doctor"]).stdout;
    let built = [
        ("cuda", cfg!(feature = "cuda")),
        ("wgpu", cfg!(feature = "wgpu")),
    ];
    for (backend, built) in built {
        let left_out = backends
            .lines()
            .find_map(|line| line.split_once("built without "))
            .is_some_and(|(_, names)| names.contains(backend));
        assert_eq!(left_out, !built, "{backend}: {backends}");
        if !built {
            let run = here.run(&["train", "loraloom.yaml", "--device", backend]);
            let command = format!("cargo build --release --features {backend}");
            assert!(run.stderr.contains(&command), "{}", run.stderr);
        }
    }
}

/// Of a build with wgpu, on a machine with Mesa's Vulkan drivers; elsewhere there is nobody to complain.
#[test]
fn libraries_do_not_complain_where_there_is_no_desktop() {
    let here = Workspace::empty();
    let mut doctor = here.command(&["doctor"]);
    let output = doctor.env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("XDG_RUNTIME_DIR"), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn doctor_tells_limits_and_how_models_are_downloaded() {
    let here = Workspace::empty();
    here.write("cache/models--org--name/snapshots/main/config.json", "{}");
    let doctor = |limit: &str, offline: &str| {
        let script = format!("{limit} exec \"$0\" \"$@\"");
        let mut command = here.command_under(&["sh", "-c", &script], &["doctor"]);
        let secrets = [
            ("HF_TOKEN", "hf_secret"),
            ("HTTPS_PROXY", "http://a:secret@b"),
        ];
        command.envs(secrets).env("HF_HUB_CACHE", "cache");
        command.env("HF_ENDPOINT", "http://here");
        here.finish(command.env("HF_HUB_OFFLINE", offline))
    };
    let told = doctor("ulimit -t 3600; ulimit -f 2000000;", "0").stdout;
    for line in [
        "WARN  limits: max cpu time 3600 seconds",
        "WARN  limits: max file size 1024000000 bytes",
        "PASS  hugging face: models 1 in cache, ",
        "; downloads from http://here with a token",
        "WARN  hugging face: HTTPS_PROXY is set",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(!told.contains("secret"), "{told}");
    let told = doctor("", "1").stdout;
    assert!(told.contains("; no downloads: HF_HUB_OFFLINE"), "{told}");
    assert!(!told.contains("limits"), "{told}");
    here.write("file", "");
    let mut command = here.command(&["doctor"]);
    let told = here
        .finish(command.env("HF_HUB_CACHE", "file/cache"))
        .stdout;
    assert!(
        told.contains("WARN  hugging face: cannot write to "),
        "{told}"
    );
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
        cpu.is_some_and(
            |line| line.contains(" GiB, computes") && line.ends_with("products by gemm")
        ),
        "{told}"
    );
    assert_eq!(here.run(&["doctor", "--model", "nowhere"]).code, 3);
    assert_eq!(here.run(&["doctor", "--thorough", "llama-9"]).code, 2);
    assert_eq!(here.run(&["doctor", "--thorough"]).code, 0);
}
