package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// installPackage writes a small install package, and returns its directory.
func installPackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"components.yaml": "namespace: mesh\nvalues: [{spec: hub, value: hub}]\ncomponents: [{name: server, chart: " +
			"charts/server, root: server, workload: {}}]\n",
		"profiles/default.yaml":    "spec: {hub: example.com/a, components: {server: {enabled: true}}}\n",
		"profiles/other.yaml":      "spec: {hub: example.com/b, values: {telemetry: {enabled: false}}}\n",
		"charts/server/Chart.yaml": "{apiVersion: v2, name: server, version: 1.0.0}\n",
		"charts/server/templates/x.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: {{ .Release.Namespace }}}, data: " +
			"{hub: {{ .Values.hub }}}}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, path, []byte(text))
	}
	return dir
}

const configMap = "apiVersion: v1\ndata:\n  hub: %\nkind: ConfigMap\nmetadata:\n  name: c\n  namespace: mesh\n"

func TestManifestGenerate(t *testing.T) {
	dir := installPackage(t)
	operator := clitest.File(t, "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec:\n  hub: example.com/file\n")
	for name, tc := range map[string]struct {
		stdin, args, hub, says string
		code                   int
	}{
		"the default profile":     {"", "", "example.com/a", "", process.ExitOK},
		"a profile":               {"", "--set profile=other", "example.com/b", "", process.ExitOK},
		"a file over a profile":   {"", "-f " + operator + " -s profile=other", "example.com/file", "", process.ExitOK},
		"a setting over a file":   {"", "-f " + operator + " --set hub=example.com/set", "example.com/set", "", process.ExitOK},
		"standard input":          {"hub: example.com/in\n", "-f -", "example.com/in", "", process.ExitOK},
		"an unknown field":        {"", "--set hubb=x", "", `--set hubb=x: hubb: unknown field; did you mean "hub"?`, process.ExitRefused},
		"no such file":            {"", "-f /none.yaml", "", "/none.yaml: no such file", process.ExitUsage},
		"an argument":             {"", "x", "", "", process.ExitUsage},
		"what is refused, forced": {"", "--set hubb=x --force", "example.com/a", "", process.ExitOK},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"manifest", "generate", "-d", dir}, strings.Fields(tc.args)...)
			out, code, err := clitest.Run(tc.stdin, args...)
			if code != tc.code || tc.says != "" && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("exit code %d, error %v", code, err)
			}
			if tc.hub != "" && !strings.HasSuffix(out, strings.Replace(configMap, "%", tc.hub, 1)) {
				t.Errorf("output %q", out)
			}
		})
	}
	t.Run("into a file", func(t *testing.T) {
		to := filepath.Join(t.TempDir(), "out.yaml")
		out, code, err := clitest.Run("", "manifest", "generate", "-d", dir, "-o", to)
		text, readErr := os.ReadFile(to)
		if out != "" || code != process.ExitOK || readErr != nil || string(text) != strings.Replace(configMap, "%", "example.com/a", 1) {
			t.Errorf("output %q, exit code %d, %v, file %q, %v", out, code, err, text, readErr)
		}
	})
	for args, want := range map[string]string{
		"-d /none":          "--manifests /none: the install package cannot be opened, name a directory that has charts/ and profiles/",
		"-d " + t.TempDir(): "the install package has no directory charts/",
	} {
		if _, code, err := clitest.Run("", append([]string{"manifest", "generate"}, strings.Fields(args)...)...); code != process.ExitUsage ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: exit code %d, %v", args, code, err)
		}
	}
}

// A package of somebody else's may hold links, whose targets its charts could put into an object.
func TestLinksLeadOutOfNoInstallPackage(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	testkit.WriteFile(t, secret, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: secret}\n"))
	for name, link := range map[string]string{"absolute": secret, "relative": "../../../../../../../../../.." + secret} {
		dir := installPackage(t)
		charts, err := filepath.Glob(filepath.Join(dir, "charts/*/templates"))
		if err != nil || len(charts) == 0 {
			t.Fatalf("no charts: %v", err)
		}
		if err := os.Symlink(link, filepath.Join(charts[0], "secret.yaml")); err != nil {
			t.Fatal(err)
		}
		out, code, err := clitest.Run("", "manifest", "generate", "-d", dir)
		if code == process.ExitOK || err == nil || strings.Contains(out, "name: secret") || !strings.Contains(err.Error(), "secret.yaml") {
			t.Errorf("%s link: exit code %d, error %v, output %q", name, code, err, out)
		}
	}
	dir := installPackage(t)
	if err := os.Symlink("default.yaml", filepath.Join(dir, "profiles/also.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, code, err := clitest.Run("", "manifest", "generate", "-d", dir, "--set", "profile=also"); code != process.ExitOK {
		t.Errorf("a link within the package: exit code %d, %v", code, err)
	}
}

func TestManifestGenerateWarnsOnStandardError(t *testing.T) {
	out, says, code, err := clitest.Split(nil, "manifest", "generate", "-d", installPackage(t), "--set", "namespace=other")
	if code != process.ExitOK || says != "warning: --set: namespace is an older form of values.global.istioNamespace\n" ||
		!strings.Contains(out, "namespace: other\n") {
		t.Errorf("exit code %d, %v, output %q, warnings %q", code, err, out, says)
	}
}

func TestProfiles(t *testing.T) {
	dir := installPackage(t)
	dump := "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec:\n  components:\n    server:\n      enabled: true\n  hub: " +
		"example.com/b\n  values:\n    telemetry:\n      enabled: false\n"
	for args, want := range map[string]string{
		"list":                           "default\nother\n",
		"list -o json":                   "[\n  \"default\",\n  \"other\"\n]\n",
		"dump other":                     dump,
		"dump other -p values.telemetry": "enabled: false\n",
		"dump -p hub":                    "example.com/a\n",
		"dump --set hub=example.com/x -p hub -o json": "\"example.com/x\"\n",
		"diff default other": "- hub: example.com/a\n+ hub: example.com/b\n+ values:\n+   telemetry:\n+     enabled: " +
			"false\n",
		"diff other other": "",
	} {
		out, code, err := clitest.Run("", append(append([]string{"profile"}, strings.Fields(args)...), "-d", dir)...)
		if code != process.ExitOK || out != want {
			t.Errorf("%s: exit code %d, %v, output %q, want %q", args, code, err, out, want)
		}
	}
	for args, want := range map[string]string{
		"dump othr":           `profile "othr" is not in the install package, which has default, other; did you mean "other"?`,
		"diff default othr":   `did you mean "other"?`,
		"dump -p values.nope": "there is no field values",
		"dump -p a[":          "a bracket is open",
	} {
		if _, code, err := clitest.Run("", append(append([]string{"profile"}, strings.Fields(args)...), "-d", dir)...); code == process.ExitOK ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v", args, code, err)
		}
	}
}

// TestOwnPackageNeedsNoFlag holds that the commands have Fairlead's own install package.
func TestOwnPackageNeedsNoFlag(t *testing.T) {
	for args, want := range map[string]string{
		"manifest generate --set profile=minimal --set values.base.enableIstioConfigCRDs=false": "  name: xds-server\n",
		"profile list": "compact\ndefault\ndemo\nempty\nexternal\nha\nminimal\nmulti-tenant\npreview\nremote\n",
		"profile dump compact -p components.compact": "enabled: true\n",
		"profile diff default minimal":               "+ components.ingressGateways[name:istio-ingressgateway].enabled: false\n",
	} {
		if out, code, err := clitest.Run("", strings.Fields(args)...); code != process.ExitOK || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, %v, output without %q:\n%s", args, code, err, want, out[:min(len(out), 2000)])
		}
	}
}
