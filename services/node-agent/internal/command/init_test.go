package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// injected are the arguments of the init container that Istio's injection writes.
const injected = "istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15090,15021,15020 --log_output_level=default:info"

// run runs a command line of node-agent in this process.
func run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := Root(&out, &errs)
	root.SetArgs(append(args, "--pod-info-dir", t.TempDir()))
	err := root.ExecuteContext(t.Context())
	if err != nil {
		errs.WriteString(err.Error())
	}
	return out.String(), errs.String(), process.ExitCode(err)
}

// TestInitContainersOfIstio runs what Istio's injection writes, as root of a network namespace of the test's own.
func TestInitContainersOfIstio(t *testing.T) {
	const inside = "INIT_NAMESPACE"
	if os.Getenv(inside) == "" {
		if userns.Again(t, "unshare", "nft", "ip") {
			return
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "-n", "sh", "-c", "ip link set lo up && exec "+os.Args[0]+" -test.run '^"+t.Name()+
			"$' -test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	args := append(strings.Fields(injected), "-x", "")
	validate := append(args, "--run-validation", "--skip-rule-apply", "--probe-timeout", "1s")
	if _, said, code := run(t, validate...); code != redirect.ExitUnverified || !strings.Contains(said, "before the plugin was there") {
		t.Errorf("without rules: code %d, %s", code, said)
	}
	if rules(t) != "" {
		t.Errorf("--skip-rule-apply has written %s", rules(t))
	}
	if _, said, code := run(t, args...); code != process.ExitOK || !strings.Contains(rules(t), "redirect to :15001") {
		t.Errorf("code %d, %s, rules %s", code, said, rules(t))
	}
	if _, said, code := run(t, append(validate, "--probe-timeout", "30s")...); code != process.ExitOK {
		t.Errorf("with rules: code %d, %s", code, said)
	}
	for _, clean := range []string{"clean-iptables", "istio-clean-iptables"} {
		if _, said, code := run(t, clean); code != process.ExitOK || rules(t) != "" {
			t.Errorf("%s: code %d, %s, rules %s", clean, code, said, rules(t))
		}
	}
	if _, said, code := run(t, append(args, "--network-namespace", "/proc/none/ns/net")...); code != process.ExitFailure ||
		!strings.Contains(said, "/proc/none/ns/net") {
		t.Errorf("a namespace that is not there: code %d, %s", code, said)
	}
}

func rules(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDryRunPrintsTheRulesOfTheBackend(t *testing.T) {
	for backend, want := range map[string]string{"auto": "# nft -f -\ntable inet fairlead",
		"iptables": "# iptables-restore --noflush\n*nat\n"} {
		if out, said, code := run(t, "init", "--dry-run", "--redirect-backend", backend); code != process.ExitOK ||
			!strings.HasPrefix(out, want) {
			t.Errorf("%s: code %d, %s, %s", backend, code, said, out)
		}
	}
	if _, said, code := run(t, "init", "--redirect-backend", "ebtables"); code != process.ExitUsage ||
		!strings.Contains(said, "--redirect-backend") {
		t.Errorf("code %d, %s", code, said)
	}
}

func TestFlagsOfTheNodesAgentAreChecked(t *testing.T) {
	root := Root(&bytes.Buffer{}, &bytes.Buffer{})
	root.SetArgs([]string{"cni", "--node-name=", "--pod-namespace=", "--repair=always", "--broken-pod-label=x", "--cni-conf-name=a/b",
		"--socket="})
	err := root.ExecuteContext(t.Context())
	if process.ExitCode(err) != process.ExitUsage {
		t.Fatalf("code %d, %v", process.ExitCode(err), err)
	}
	for _, flag := range []string{"--node-name", "--pod-namespace", "--repair", "--broken-pod-label", "--cni-conf-name", "--socket"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("no word of %s: %v", flag, err)
		}
	}
}

// TestInitLeavesRulesToTheirOwner: with ISTIO_CUSTOM_IP_TABLES in a machine's file init writes nothing, and needs no
// privileges.
func TestInitLeavesRulesToTheirOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.env")
	if err := os.WriteFile(file, []byte("ISTIO_CUSTOM_IP_TABLES=true\nPROXY_UID=1337\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(t.TempDir(), "no", "namespace")
	args := []string{"init", "--env-file", file, "--network-namespace", none}
	if _, said, code := run(t, args...); code != process.ExitOK || !strings.Contains(said, "ISTIO_CUSTOM_IP_TABLES") {
		t.Errorf("code %d, %s", code, said)
	}
	if _, said, code := run(t, append(args, "--cleanup")...); code != process.ExitFailure || !strings.Contains(said, none) {
		t.Errorf("--cleanup does not go into the namespace: code %d, %s", code, said)
	}
	if _, said, code := run(t, "init", "--env-file", file+"x"); code != process.ExitUsage || !strings.Contains(said, file+"x") {
		t.Errorf("a file that is not there: code %d, %s", code, said)
	}
}
