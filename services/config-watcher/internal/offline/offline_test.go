package offline_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/offline"
	"fairlead.dev/services/config-watcher/internal/validate"
)

const (
	good = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n" +
		"spec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}\n"
	bad        = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad}\nspec:\n  hosts: [web]\n  htpp: []\n"
	deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
	list       = "apiVersion: v1\nkind: List\nitems:\n" +
		"- {apiVersion: v1, kind: ServiceAccount, metadata: {name: a}}\n- {apiVersion: v1, kind: ServiceAccount, metadata: {name: B}}\n"
)

func run(t *testing.T, stdin string, paths ...string) (verdicts []offline.Verdict, s offline.Summary) {
	t.Helper()
	err := offline.Validate(paths, strings.NewReader(stdin), false, func(v offline.Verdict) {
		verdicts = append(verdicts, v)
		s.Add(v)
	})
	if err != nil {
		t.Fatal(err)
	}
	return verdicts, s
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		// want has a line for each verdict: "line object: errors/warnings".
		want []string
		text string
	}{
		"several": {good + "---\n" + bad + "---\n" + deployment,
			[]string{"1 VirtualService shop/web 0/0", "6 VirtualService default/bad 1/0", "13 Deployment default/web 0/0 ignored"},
			`11 spec.htpp: unknown field "htpp"`},
		"same object twice": {good + "---\n" + good, []string{"1 VirtualService shop/web 0/0", "6 VirtualService shop/web 1/0"},
			"6 : same object as at stdin:1; remove one"},
		"List": {list, []string{"4 ServiceAccount default/a 0/0", "5 ServiceAccount default/B 1/0"},
			`5 metadata.name: "B": not a valid name`},
		"tab": {good + "---\nkind: VirtualService\nmetadata:\n\tname: x\n", []string{"1 VirtualService shop/web 0/0", "8  1/0"},
			"indent the line with spaces"},
		"no YAML":        {good + "---\nkind: [", []string{"1 VirtualService shop/web 0/0", "6  1/0"}, "not valid YAML"},
		"no object":      {"- 1\n", []string{"1  1/0"}, "document is no object"},
		"no kind":        {"metadata: {name: x}\n", []string{"1  1/0"}, "apiVersion: missing"},
		"empty":          {"", []string{"1  1/0"}, "holds no object"},
		"comments":       {"# nothing\n---\n", []string{"1  1/0"}, "holds no object"},
		"MeshConfig":     {"enableTracing: true\n", []string{"1 MeshConfig istio-system/istio 0/1"}, "proxies send no traces"},
		"bad MeshConfig": {"trustDomain: a\nnonsense: 1\n", []string{"1 MeshConfig istio-system/istio 1/0"}, `unknown field "nonsense"`},
		"not MeshConfig": {"services: {web: {}}\n", []string{"1  1/0"}, "apiVersion: missing"},
		"ConfigMap": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: " +
			"\"rootNamespace: A\"}\n", []string{"1 ConfigMap istio-system/istio 1/0"}, "rootNamespace"},
	} {
		t.Run(name, func(t *testing.T) {
			verdicts, _ := run(t, tc.content, offline.Stdin)
			var got, text []string
			for _, v := range verdicts {
				got = append(got, describe(v))
				for _, f := range append(v.Errors, v.Warnings...) {
					text = append(text, strings.TrimSpace(strings.Join([]string{strconv.Itoa(f.Line), f.Field + ":", f.Message}, " ")))
				}
				if v.File != offline.StdinName || v.Errors == nil || v.Warnings == nil {
					t.Errorf("verdict %+v", v)
				}
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if all := strings.Join(text, "\n"); !strings.Contains(all, tc.text) {
				t.Errorf("findings lack %q:\n%s", tc.text, all)
			}
		})
	}
}

func describe(v offline.Verdict) string {
	out := strconv.Itoa(v.Line) + " " + v.Object() + " " + strconv.Itoa(len(v.Errors)) + "/" + strconv.Itoa(len(v.Warnings))
	if v.Ignored {
		out += " ignored"
	}
	return out
}

// TestPaths: directories are listed as the file source does, and only a named file must hold an object.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.yaml": good,
		"below/b.json": `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a"}}`, ".hidden.yaml": bad, "notes.txt": bad,
		"empty.yml": "# nothing yet\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, filepath.Join(dir, name), []byte(content))
	}
	verdicts, s := run(t, "", dir, filepath.Join(dir, "a.yaml"))
	if len(verdicts) != 3 || s.Refused != 0 || s.Warned != 1 || s.Accepted != 3 {
		t.Errorf("%+v of %+v", s, verdicts)
	}
	if verdicts, s = run(t, bad, filepath.Join(dir, "empty.yml"), offline.Stdin); s.Refused != 2 || verdicts[0].File != offline.StdinName {
		t.Errorf("%+v of %+v", s, verdicts)
	}
	for name, path := range map[string]string{"no such file": filepath.Join(dir, "x.yaml"), "no *.yaml": t.TempDir(),
		"not a regular file": "/dev/null"} {
		said := 0
		err := offline.Validate([]string{filepath.Join(dir, "a.yaml"), path}, nil, false, func(offline.Verdict) { said++ })
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), name) || said > 0 {
			t.Errorf("%s: %v, %d verdicts", name, err, said)
		}
	}
}

// TestAsTheSource: the verdict on every sample equals the result of package validate.
func TestAsTheSource(t *testing.T) {
	const samples = "../../../../samples/bookinfo"
	seen := map[object.Key]bool{}
	verdicts, _ := run(t, "", samples)
	got := map[string]bool{}
	for _, v := range verdicts {
		got[v.File+":"+strconv.Itoa(v.Line)] = len(v.Errors) == 0
	}
	compared := 0
	err := filepath.WalkDir(samples, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		manifest.Each(path, content, func(d *manifest.Document) {
			compared++
			o, err := validate.Document(d)
			var problems object.Problems
			refused := errors.As(err, &problems) || err == nil && seen[o.Key] // reviews-v3.yaml is another version of an object
			if err == nil {
				seen[o.Key] = true
			}
			if got[d.Location()] == refused {
				t.Errorf("%s: accepted is %v, validation says %v", d.Location(), got[d.Location()], err)
			}
		})
		return nil
	})
	if err != nil || compared < 20 {
		t.Errorf("%d objects, %v", compared, err)
	}
}
