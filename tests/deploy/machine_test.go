package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unitFile runs node-agent on a machine outside of Kubernetes.
const unitFile = "../../deploy/machine/fairlead-node-agent.service"

// unit is the settings of a unit by section and name; a setting that is repeated has several values.
type unit map[string]map[string][]string

func readUnit(t *testing.T) (text string, u unit) {
	t.Helper()
	data, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	u = unit{}
	section := ""
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line
			u[section] = map[string][]string{}
		default:
			name, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.TrimSpace(name) != name || strings.HasSuffix(value, "\\") {
				t.Fatalf("line %d: %q: no setting on one line, in a section", i+1, line)
			}
			u[section][name] = append(u[section][name], value)
		}
	}
	if got := slices.Sorted(maps.Keys(u)); !slices.Equal(got, []string{"[Install]", "[Service]", "[Unit]"}) {
		t.Fatalf("sections %q", got)
	}
	return string(data), u
}

func TestSystemdTakesTheUnit(t *testing.T) {
	text, u := readUnit(t)
	for name, want := range map[string]string{
		"User": "istio-proxy", "WorkingDirectory": "/", "Restart": "always", "LimitNOFILE": "1048576",
		"KillMode":                 "mixed", // with another one Envoy gets SIGTERM too, and ends before it has drained
		"RestartPreventExitStatus": "2", "CapabilityBoundingSet": "", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
	} {
		if got := u["[Service]"][name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze here: what it would say of the unit is not known")
		return
	}
	// It wants programs that exist, and files of another unit would be looked up on this machine.
	file := filepath.Join(t.TempDir(), filepath.Base(unitFile))
	verify := func(text string) string {
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/usr/local/bin/node-agent", "/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%v: %s", err, out)
		}
		return string(out)
	}
	if said := verify(text); strings.Contains(said, filepath.Base(unitFile)) {
		t.Error(said)
	}
	if said := verify(strings.Replace(text, "KillMode=mixed", "KillMode=sometimes", 1)); !strings.Contains(said, filepath.Base(unitFile)) {
		t.Errorf("systemd-analyze does not notice a wrong setting, and shows nothing: %q", said)
	}
}

// TestTheUnitsInitReadsAMachinesFile runs the unit's first command with the file of fairlead vm bootstrap: it prints
// its rules. What the agent itself makes of the files is held by node-agent's package config.
func TestTheUnitsInitReadsAMachinesFile(t *testing.T) {
	_, u := readUnit(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "/var/lib/istio/envoy/cluster.env")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`CA_ADDR='ca.istio-system.svc:15012'
ISTIO_INBOUND_PORTS='8080'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"machine"}'
ISTIO_META_AUTO_REGISTER_GROUP='machines'
ISTIO_NAMESPACE='shop'
ISTIO_SERVICE='machines.shop'
ISTIO_SERVICE_CIDR='*'
ISTIO_SVC_IP='192.0.2.7'
SERVICE_ACCOUNT='vm'
TRUST_DOMAIN='example.org'
`), 0o600); err != nil {
		t.Fatal(err)
	}
	pre, asRoot := strings.CutPrefix(u["[Service]"]["ExecStartPre"][0], "+")
	args := append(strings.Fields(pre)[1:], "--dry-run")
	for i, arg := range args {
		if filepath.IsAbs(arg) { // the test's directory takes the place of /
			args[i] = filepath.Join(dir, arg)
		}
	}
	cmd := exec.CommandContext(t.Context(), binary(t, "node-agent"), args...)
	cmd.Dir = dir
	// The variables are those that only a machine's own users have.
	cmd.Env = append(strings.Fields(u["[Service]"]["Environment"][0]), "PROXY_UID=997", "PROXY_GID=995", "POD_NAME=db-1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", pre, err, out)
	}
	if rules := string(out); !asRoot || !strings.Contains(rules, "skuid") || !strings.Contains(rules, "997") ||
		!strings.Contains(rules, "8080") {
		t.Errorf("as root %t, rules %s", asRoot, rules)
	}
}
