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

func TestManifestMigrate(t *testing.T) {
	dir := installPackage(t)
	operator := clitest.File(t, "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec:\n  values: {hub: example.com/v}\n")
	values := clitest.File(t, "pilot: {traceSampling: 1}\n")
	strange := filepath.Join(t.TempDir(), "a=b.yaml")
	testkit.WriteFile(t, strange, []byte("hub: example.com/bare\ncomponents: {server: {enabled: true}}\n"))
	missing := filepath.Join(t.TempDir(), "no-kubeconfig")
	for _, tc := range []struct {
		name, stdin, args, out, says string
		code                         int
	}{
		{"a setting on an IstioOperator", "", "-f " + operator + " --set hub=example.com/s", "hub: example.com/", "", process.ExitOK},
		{"a bare spec, of a file with = in its name", "", "-f " + strange, "hub: example.com/bare", "", process.ExitOK},
		{"standard input", "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {hub: example.com/in}\n", "-f -",
			"hub: example.com/in", "", process.ExitOK},
		{"a chart that is none", "", "-f istoid=" + values, "",
			`"istoid" is none of Istio's charts, which are base, istiod, cni, ztunnel, gateway; did you mean "istiod"?`, process.ExitUsage},
		{"a chart that is not clear", "a: b\n", "-f -", "", "write CHART=FILE", process.ExitUsage},
		{"an IstioOperator as a chart", "", "-f istiod=" + operator, "", "no values of a chart; leave out istiod=", process.ExitUsage},
		{"two kinds of files", "", "-f " + operator + " -f " + values, "", "migrate one kind at a time", process.ExitUsage},
		{"a setting on values", "", "-f " + values + " --set a=b", "", "--set is a setting of an IstioOperator", process.ExitUsage},
		{"no YAML", "a: [", "-f istiod=-", "", "-: yaml", process.ExitRefused},
		{"no such file", "", "-f istiod=/none.yaml", "", "/none.yaml: no such file", process.ExitUsage},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\n", "-f -", "", "only IstioOperator", process.ExitRefused},
		{"no kubeconfig", "", "--kubeconfig " + missing, "", "name a file with --kubeconfig", process.ExitFailure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, code, err := clitest.Run(tc.stdin, append([]string{"manifest", "migrate", "-d", dir}, strings.Fields(tc.args)...)...)
			if code != tc.code || !strings.Contains(out, tc.out) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("exit code %d, output %q, error %v", code, out, err)
			}
		})
	}
	written := filepath.Join(t.TempDir(), "mesh.yaml")
	if out, code, err := clitest.Run("", "manifest", "migrate", "-d", dir, "-f", operator, "-o", written); code != process.ExitOK ||
		strings.Contains(out, "kind:") {
		t.Errorf("--output: %q, %v", out, err)
	}
	if text, err := os.ReadFile(written); err != nil ||
		!strings.HasPrefix(string(text), "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n") {
		t.Errorf("the file is %q, %v", text, err)
	}
}
