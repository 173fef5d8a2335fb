package config_test

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestAnalyzeRunsConfigWatcher(t *testing.T) {
	t.Setenv("PATH", "/usr/bin:/bin")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.WriteFile(t, kubeconfig,
		[]byte("{clusters: [{name: a, cluster: {server: 'https://192.0.2.1'}}], contexts: [{name: a, context: {cluster: a}}], "+
			"current-context: a}"))
	const always = "analyze --failure-threshold=error --output-threshold=info --timeout=30s"
	for name, tc := range map[string]struct {
		code string
		args []string
		out  string
		exit int
	}{
		"files": {"0", []string{"a", "-f", "b", "-"}, always + " -- b a -", process.ExitOK},
		"an API server": {"0", []string{"-k", "--kubeconfig", "k", "--context=c", "-n", "shop"},
			always + " --kubeconfig=k --context=c --namespace=shop --kube --", process.ExitOK},
		"istioctl's": {"0", []string{"--use-kube=false", "--meshConfigFile=m", "-A", "-R", "--output-threshold=Info", "x"},
			always + " --mesh-config-file=m --all-namespaces -- x", process.ExitOK},
		"suppressed": {"0", []string{"x", "-S", "IST0103=Pod *.testing", "--suppress=a=b"},
			always + " --suppress=IST0103=Pod *.testing --suppress=a=b -- x", process.ExitOK},
		"SARIF": {"0", []string{"x", "-o", "sarif"}, always + " --output=sarif -- x", process.ExitOK},
		"a kubeconfig": {"0", []string{"--kubeconfig", kubeconfig, "-A"},
			always + " --kubeconfig=" + kubeconfig + " --kube --all-namespaces --", process.ExitOK},
		"list":            {"0", []string{"-L"}, always + " --list-analyzers --", process.ExitOK},
		"found something": {"79", []string{"x", "--ignore-unknown"}, always + " --ignore-unknown -- x", 79},
		"text":            {"65", []string{"x", "--failure-threshold", "Warning"}, strings.Replace(always, "error", "warning", 1) + " -- x", 65},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := clitest.Run("in", append([]string{"analyze", "--bin-dir", clitest.FakeWatcher(t, tc.code)}, tc.args...)...)
			if want := `{"args": "` + tc.out + `", "input": "in"}`; strings.TrimSpace(out) != want || code != tc.exit {
				t.Errorf("output %q, exit code %d, %v, want %q, %d", out, code, err, want, tc.exit)
			}
			if tc.exit != process.ExitOK && err.Error() != "no" {
				t.Errorf("error %q, want config-watcher's own", err)
			}
		})
	}
}

func TestAnalyzeUsage(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	for args, says := range map[string]string{
		"analyze":                             "--kube",
		"analyze --use-kube=false":            "name files or directories",
		"analyze x -o xml":                    "must be one of",
		"analyze x --failure-threshold worse": "must be one of info, warning, error",
		"analyze x --recursive=false":         "subdirectories",
	} {
		if _, code, err := clitest.Run("", strings.Fields(args)...); code != process.ExitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: exit code %d, %v", args, code, err)
		}
	}
}
