package cli_test

import (
	"os"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/local/rundir"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"up", "--nonsense"}, {"up", "extra"}, {"up", "--loopback-range", "here"}, {"up", "--log-level", "loud"},
		{"up", "--drain", "-1s"}, {"up", "--file-grace-period", "500ms"},
		{"config", "nonsense"}, {"config", "apply"}, {"config", "apply", "-f", "/does/not/exist"}, {"config", "delete"},
		{"config", "delete", "vs"},
		{"config", "get", "vs", "-o", "xml"}, {"config", "get", "--config-watcher-address", "127.0.0.1:1"},
		{"proxy-config", "web"}, {"proxy-config", "web", "nonsense"}, {"proxy-config", "web", "secrets", "--served"},
		{"proxy-config", "web", "nametables"}, {"proxy", "renew"}, {"demo"},
		{"why", "web"}, {"why", "web", "reviews", "-o", "xml"}, {"proxy-status", "-o", "xml"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if _, code, err := clitest.Run("", args...); code != process.ExitUsage {
				t.Errorf("exit code %d, %v", code, err)
			}
		})
	}
}

func TestCommandsOfThisMachineSayWhatIsDoneInACluster(t *testing.T) {
	for command, want := range map[string]string{
		"logs web": "kubectl logs", "restart web": "kubectl rollout restart", "scale deploy/web --replicas=1": "kubectl scale",
		"config delete vs/web": "kubectl delete", "config apply -f " + clitest.File(t, clitest.Object): "kubectl apply -f FILE",
	} {
		args := append(strings.Fields(command), "--run-dir", t.TempDir())
		if _, _, err := clitest.Run("", args...); err == nil || !strings.Contains(err.Error(), "; for a mesh in a cluster: "+want) {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestHelpOfExitCodes(t *testing.T) {
	out, code, err := clitest.Run("", "help", "exit-codes")
	if err != nil || code != process.ExitOK {
		t.Fatal(err)
	}
	for _, line := range []string{"  0  ", "  1  ", "  2  ", "  3  "} {
		if !strings.Contains(out, line) {
			t.Errorf("lacks %q:\n%s", line, out)
		}
	}
}

func TestConnectionErrorsNameTheRemedy(t *testing.T) {
	m := clitest.New(t)
	closed := testkit.FreeAddress(t).String()
	strangers := testkit.NewIssuer(t).TokenFile("istio-system", "fairlead-admin", "fairlead")
	replace := func(flag, value string) []string {
		out := append([]string{"config", "get"}, m.Flags...)
		for i := range out {
			if out[i] == flag {
				out[i+1] = value
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"server away":     {replace("--config-watcher-address", closed), "cannot be reached"},
		"another's token": {replace("--token-file", strangers), "does not know who you are"},
		"no token file":   {replace("--token-file", "/does/not/exist"), "--token-file"},
		"another's root":  {replace("--root-cert-file", testkit.PKI(t).WriteRoot(t.TempDir())), "cannot be reached"},
		"no mesh":         {[]string{"config", "get", "--run-dir", t.TempDir()}, "fairlead up --run-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, code, err := clitest.Run("", tc.args...); code != process.ExitFailure || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("exit code %d, %v", code, err)
			}
		})
	}
}

// TestRunDirectory finds the mesh by its state.json.
func TestRunDirectory(t *testing.T) {
	m := clitest.New(t)
	dir := t.TempDir()
	s := runstate.State{
		PID: os.Getpid(), Birth: rundir.Birth(os.Getpid()), TrustDomain: testkit.TrustDomain,
		ConfigWatcherAddress: m.Address, RootCertFile: m.RootFile, AdminTokenFile: m.Flags[len(m.Flags)-1],
	}
	if err := rundir.Write(rundir.Layout{Dir: dir}, &s); err != nil {
		t.Fatal(err)
	}
	if out, _, err := clitest.Run(clitest.Object, "config", "apply", "-f", "-", "--run-dir", dir); err != nil || !strings.Contains(out, "created") {
		t.Errorf("%q, %v", out, err)
	}
	if _, code, err := clitest.Run("", "proxy-config", "nobody", "clusters", "--run-dir", dir); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "nobody") {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out, _, err := clitest.Run("", "down", "--run-dir", t.TempDir()); err != nil || !strings.Contains(out, "no mesh runs") {
		t.Errorf("down of nothing: %q, %v", out, err)
	}
}
