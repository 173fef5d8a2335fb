package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// splitRoute sends a quarter of the server's requests to v2, which has no endpoints.
const splitRoute = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
    - route:
        - {destination: {host: server, subset: v1}, weight: 75}
        - {destination: {host: server, subset: v2}, weight: 25}
`

// TestHabits tries what users of kubectl and istioctl write without thinking.
func TestHabits(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	m.WriteConfig(t, "split.yaml", splitRoute)
	const split = "server.apps.svc.cluster.local:80 v1 (75%), v2 (25%)"
	m.Eventually(t, testkit.Patience, func() error {
		if _, out, _ := m.CLI(t, "pc", "r", "deploy/client", "-n", "apps", "--name", "server"); !strings.Contains(out, split) {
			return fmt.Errorf("no weights in\n%s", out)
		}
		return nil
	})
	for _, c := range []struct {
		args string
		says string
	}{
		{"ps -A", "client-0.apps"},
		{"ps -n apps -l app=client -o wide", "/ns/apps/sa/client"},
		{"ps deploy/client -n apps", "client-0.apps"},
		{"pc c client-0.apps --fqdn server --port 80 --subset v1", "server.apps.svc.cluster.local"},
		{"pc ep pod/client-0 -n apps --status HEALTHY --address " + m.Pod(t, "server-v1-0").IP, m.Pod(t, "server-v1-0").IP + ":8080"},
		{"pc listener client-0 --type HTTP --port 15080", "Route: 15080"},
		{"pc all client-0 --fqdn server", "RESOURCE NAME"},
		{"pc s client-0 --name ROOTCA", "ROOTCA"},
		{"pc log client-0 --level http:debug,router:trace", "router "},
		{"pc log client-0 -o json", `"level": "trace"`},
		{"pc log client-0 --reset", "warning"},
		{"pc clusters client-0 --served --fqdn server --subset v1", "server.apps.svc.cluster.local"},
		{"pc routes client-0 --served --name server", split},
		{"config get po,sidecar -A", "client-0"},
		{"config get pod/client-0.apps -o yaml", "kind: Pod"},
		{"logs xds-server --tail 5", "xds-server-1"},
		{"logs deploy/client -c istio-proxy --since 1h", `"service":"node-agent"`},
		{"why client-0 server:80 --type virtualhosts -n apps", "VirtualService"},
		{"version --short", ""},
		{"config get pods -n apps", "ADDRESS"},
		{"config get pods -n apps", m.Pod(t, "late-0").IP},
		{"restart deploy/late -n apps", "Pod late-0.apps restarted"},
	} {
		code, out, errOut := m.CLI(t, strings.Fields(c.args)...)
		if code != 0 || !strings.Contains(out, c.says) {
			t.Errorf("fairlead %s: exit code %d, lacks %q: %s\n%s", c.args, code, c.says, errOut, out)
		}
		if strings.Contains(out, " trace\n") && strings.HasSuffix(c.args, "--reset") {
			t.Errorf("fairlead %s leaves a level:\n%s", c.args, out)
		}
	}
	for args, says := range map[string]string{
		"ps -n apsp":               `did you mean "apps"?`,
		"pc c cleint-0":            `did you mean "client-0.apps"?`,
		"pc c client-0 --prot 80":  "did you mean --port?",
		"logs xds-sever":           `did you mean "xds-server"?`,
		"pc lister client-0":       "did you mean `fairlead proxy-config listeners client-0`?",
		"config apply mesh.yaml":   "`fairlead config apply -f mesh.yaml`",
		"restart deploy/lte":       `did you mean "deploy/late"?`,
		"prxy-status":              "did you mean `fairlead proxy-status`?",
		"config get vs/none.apps":  "none",
		"why cleint-0 server:80":   `did you mean "client-0.apps"?`,
		"pc clusters late-0 --prt": "did you mean --port?",
	} {
		if code, _, errOut := m.CLI(t, strings.Fields(args)...); code == 0 || !strings.Contains(errOut, says) {
			t.Errorf("fairlead %s: exit code %d, lacks %q: %s", args, code, says, errOut)
		}
	}
	for name, tc := range map[string]struct{ script, want string }{
		"a reader that has enough":           {`"$0" pc all client-0 -o json | head -n 1`, "{\n"},
		"completion":                         {`"$0" __complete pc clusters cli 2>/dev/null`, "client-0.apps\n:4\n"},
		"run directory from the environment": {`"$0" config get po client-0 -n apps -o name`, "pod/client-0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", tc.script, binaries.Path("fairlead"))
			cmd.Env = append(cmd.Environ(), "FAIRLEAD_RUN_DIR="+m.RunDir())
			var out, errOut strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil || out.String() != tc.want || errOut.String() != "" {
				t.Errorf("%v: %q, %q", err, out.String(), errOut.String())
			}
		})
	}
}

// TestRevisionsGoForward restarts what counts, reports and is reported, and looks at every number that `fairlead
// proxy-status` shows.
func TestRevisionsGoForward(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml"}})
	m.WaitReady(t)
	shown := map[string]uint64{}
	look := func(step string) (newest uint64, behind []string) {
		t.Helper()
		code, out, _ := m.CLI(t, "ps", "-o", "json")
		if code != 0 {
			return 0, []string{"no answer"} // config-watcher is on its way back
		}
		type revision struct{ Sequence json.Number }
		var all struct {
			Revision revision
			Proxies  []struct {
				NodeID string
				Acked  *revision
				Types  []struct {
					TypeURL string
					Acked   *revision
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatal(err)
		}
		see := func(what string, r *revision) (n uint64) {
			if r == nil || r.Sequence == "" {
				return 0 // nothing is known of a connection that has just begun, or before the sources are read
			}
			if _, err := fmt.Sscan(r.Sequence.String(), &n); err != nil {
				t.Fatal(err)
			}
			if n < shown[what] {
				t.Errorf("%s: %s went from %d to %d", step, what, shown[what], n)
			}
			shown[what] = n
			return n
		}
		newest = see("the newest revision", &all.Revision)
		for _, p := range all.Proxies {
			if see(p.NodeID, p.Acked) < newest {
				behind = append(behind, p.NodeID)
			}
			for _, ty := range p.Types {
				see(p.NodeID+" "+ty.TypeURL, ty.Acked)
			}
		}
		if len(all.Proxies) < 3 {
			behind = append(behind, "proxies are away")
		}
		return newest, behind
	}
	settle := func(step string, atLeast uint64) uint64 {
		t.Helper()
		var newest uint64
		m.Eventually(t, testkit.Patience, func() error {
			var behind []string
			if newest, behind = look(step); len(behind) > 0 || newest < atLeast {
				return fmt.Errorf("revision %d of at least %d, not everywhere: %v", newest, atLeast, behind)
			}
			return nil
		})
		return newest
	}
	newest := settle("start", 1)
	for i := range 3 {
		m.WriteConfig(t, "split.yaml", strings.Replace(splitRoute, "weight: 75", fmt.Sprintf("weight: %d", 60+i), 1))
		newest = settle("change", newest+1)
	}
	for _, service := range []string{"xds-server-0", "config-watcher", "xds-server-1", "config-watcher"} {
		m.Kill(t, service)
		settle("after the end of "+service, newest)
	}
	m.WriteConfig(t, "split.yaml", splitRoute)
	settle("change after all", newest+1)
	// Revision, three proxies, and four types of each.
	if len(shown) < 12 {
		t.Errorf("the test has seen too little: %v", shown)
	}
}
