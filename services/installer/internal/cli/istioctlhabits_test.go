package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
)

func TestErrorsSuggestTheNearestName(t *testing.T) {
	for args, says := range map[string]string{
		"prox-status":                         "did you mean `fairlead proxy-status`?",
		"ps2":                                 "did you mean `fairlead proxy-status`?",
		"get":                                 "did you mean `fairlead config get`?",
		"config aply":                         "did you mean `fairlead config apply`?",
		"proxy renw":                          "did you mean `fairlead proxy renew`?",
		"analyze":                             "--kube for the objects of an API server",
		"analyze -n shop":                     "--kube for the objects of an API server",
		"analyze --recursive=false x":         "read with their subdirectories",
		"bug-report":                          "no mesh runs there",
		"bug-report --full-secrets":           "a report never has secrets",
		"bug-report --duration ever":          "write it as 30m",
		"bug-report --start-time today":       "write it as 2026-03-01T10:00:00Z",
		"bug-report --include a/b/c/d":        "NAMESPACE,",
		"x describe pod web-0 -n shop":        "no mesh runs there",
		"experimental describe service web":   "no mesh runs there",
		"describe deployment web":             "unknown command",
		"x wait --for=distribution vs web":    "no mesh runs there",
		"wait service/web":                    "has no conditions",
		"wait vs":                             "names no object",
		"wait vs/web --for=deletd":            "did you mean \"deleted\"?",
		"wait vs/web --threshold 90":          "write 0 to 1",
		"wait vs/web --threshold 0.9":         "--for delivery",
		"dashboard proxy":                     "of which Pod?",
		"dashboard xds-servr":                 "no mesh runs there",
		"dashboard kiali web-0":               "name one page",
		"dashboard grafana --port 70000":      "1 to 65535",
		"x authz check web-0":                 "no mesh runs there",
		"x banana":                            "docs/reference/cli.md",
		"dash kiali":                          "runs no kiali",
		"tag lits":                            "did you mean `fairlead tag list`?",
		"x prechek":                           "did you mean `fairlead precheck`?",
		"tag set prod":                        "--revision",
		"operator init --watchedNamespaces x": "no API server",
		"operator banana":                     "unknown command \"banana\"",
		"create-remote-secret --auth-type a":  "runs no program and no auth provider",
		"manifest translate -f x.yaml":        "istioctl's, missing here: the charts",
		"install --set profile=demo":          "no API server",
		"x unistall":                          "did you mean `fairlead uninstall`?",
		"uninstall":                           "--revision REVISION for one, or --purge for all",
		"uninstall --purge --revision x":      "--revision REVISION for one, or --purge for all",
		"rollback":                            "no API server",
		"diff -o table":                       "must be one of short, json, yaml",
		"version --remote":                    "no API server",
		"version --context other":             "context \"other\" does not exist",
		"version --revison blue":              "did you mean --revision?",
		"config get --context other":          "context \"other\" does not exist",
		"config status -i istio-system":       "no API server",
		"config apply --revision x -f x":      "which has one revision",
		"ps -i istio-system":                  "no API server",
		"ps --context other":                  "context \"other\" does not exist",
		"banana":                              "unknown command \"banana\"; see `fairlead --help`",
		"proxy-status --namspace x":           "did you mean --namespace?",
		"config get --rundir x":               "did you mean --run-dir?",
		"config get -o ymal":                  "did you mean \"yaml\"?",
		"proxy-config rotues web-0":           "did you mean `fairlead proxy-config routes web-0`?",
		"proxy-config web-0 endpiont":         "did you mean `fairlead proxy-config web-0 endpoints`?",
		"proxy-config clstr web-0":            "did you mean `fairlead proxy-config clusters web-0`?",
		"proxy-config rootca-compare a b":     "istioctl's, missing here: compare the serial numbers",
		"x rootca-compare a b":                "istioctl's, missing here: compare the serial numbers",
		"proxy-config c web-0 --status x":     "--fqdn",
		"proxy-config routes web --level x":   "`fairlead proxy-config log`",
		"proxy-config routes svc/web":         "pod/NAME or deploy/NAME",
		"logs --level wran":                   "did you mean \"warn\"?",
		"config get vs/web dr":                "KIND/NAME",
		"config get vs, web":                  "empty kind",
		"config delete vs":                    "KIND/NAME",
		"proxy-status -n a -A":                "namespace all-namespaces",
		"proxy-config routes -l app=web":      "name one PROXY",
		"proxy-status -l app=(":               "--selector",
		"proxy-config log web --level a -f x": "accepts 1 arg",
	} {
		t.Run(args, func(t *testing.T) {
			_, _, code, err := clitest.Split(nil, strings.Fields(args)...)
			if err == nil || !strings.Contains(err.Error(), says) || code == process.ExitOK {
				t.Errorf("%v (exit code %d) lacks %s", err, code, says)
			}
		})
	}
}

func TestVersionOfItself(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"version", "--short"}} {
		if out, _, _, err := clitest.Split(nil, args...); err != nil || strings.Count(out, "\n") != 1 || len(out) < 3 {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	for _, as := range []string{"yaml", "json"} {
		out, _, _, err := clitest.Split(nil, "version", "-o", as, "--run-dir", t.TempDir())
		if err != nil || !strings.Contains(out, "fairlead") || !strings.Contains(out, "source") {
			t.Errorf("%s: %q, %v", as, out, err)
		}
	}
}

// Without a cluster istioctl's words and JSON have the client's version alone, also beside an error.
func TestVersionWithoutACluster(t *testing.T) {
	for args, code := range map[string]int{"version --remote=false": 0, "version --remote=false --short": 0, "version --remote": 2,
		"version -i istio-system -s": 2} {
		out, _, got, _ := clitest.Split(nil, strings.Fields(args)...)
		if got != code || !strings.HasPrefix(out, "client version: ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q", args, got, out)
		}
	}
	out, _, _, err := clitest.Split(nil, "version", "--remote=false", "-o", "json")
	var tree map[string]struct{ Version, Service string }
	if err != nil || json.Unmarshal([]byte(out), &tree) != nil || len(tree) != 1 || tree["clientVersion"].Version == "" {
		t.Errorf("%q, %v", out, err)
	}
}

// Who interrupts a question to an API server that does not answer gets no other answer in its place.
func TestVersionIsInterrupted(t *testing.T) {
	l := testkit.LoopbackListener(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			cancel()
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	file := filepath.Join(t.TempDir(), "config")
	testkit.WriteFile(t, file, []byte(
		`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}], clusters: [{name: a, cluster: {server: "http://`+l.Addr().String()+`"}}]}`))
	t.Setenv("KUBECONFIG", file)
	t.Chdir(t.TempDir()) // where no mesh runs
	var out, said bytes.Buffer
	err := cli.Run(ctx, command.Env{Out: &out, Err: &said, Getenv: func(string) string { return "" }}, []string{"version"})
	if !errors.Is(err, context.Canceled) || out.Len() > 0 {
		t.Errorf("%v, %q, %q", err, out.String(), said.String())
	}
}

func TestRunDirectoryOfTheEnvironment(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(clitest.TwoProxies(), nil)
	dir := m.RunMesh(t)
	env := map[string]string{"FAIRLEAD_RUN_DIR": dir}
	for _, args := range [][]string{{"proxy-status"}, {"config", "get"}, {"config", "bans"}} {
		if out, _, _, err := clitest.Split(env, args...); err != nil {
			t.Errorf("%v: %q, %v", args, out, err)
		}
		if _, _, code, _ := clitest.Split(env, append(args, "--run-dir", t.TempDir())...); code != process.ExitFailure {
			t.Errorf("%v: --run-dir does not go before FAIRLEAD_RUN_DIR", args)
		}
	}
}

func TestFilenameTakesListsOfFiles(t *testing.T) {
	m := clitest.New(t)
	dir := t.TempDir()
	var names []string
	for _, name := range []string{"one", "two", "three,four"} {
		path := filepath.Join(dir, name+".yaml")
		testkit.WriteFile(t, path, []byte(strings.ReplaceAll(clitest.Object, "name: web", "name: "+strings.ReplaceAll(name, ",", "-"))))
		names = append(names, path)
	}
	out, code, err := m.Run("", "config", "apply", "--filename", names[0]+","+names[1], "-f", names[2], "--dry-run")
	if err != nil || strings.Count(out, "created") != 3 {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	if out, _, err := m.Run("", "config", "apply", "--file", names[0], "--dry-run"); err != nil || strings.Count(out, "created") != 1 {
		t.Errorf("--file: %q, %v", out, err)
	}
}

// shopObjects are objects of two kinds in two namespaces.
const shopObjects = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {hosts: [web]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec: {hosts: [web]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out.side, namespace: default}
spec: {hosts: [out.side]}
`

func TestObjectsAreNamedAsWithKubectl(t *testing.T) {
	m := clitest.New(t)
	if out, _, err := m.Run(shopObjects, "config", "apply", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	for args, want := range map[string][]string{
		"vs,dr -n shop":             {"virtualservice/web", "destinationrule/web"},
		"vs/web.shop dr/web.shop":   {"virtualservice/web", "destinationrule/web"},
		"vs,dr web -n shop":         {"virtualservice/web", "destinationrule/web"},
		"se/out.side":               {"serviceentry/out.side"},
		"se out.side.default":       {"serviceentry/out.side"},
		"vs web -A":                 {"virtualservice/web", "virtualservice/web"},
		"vs -A -l app=web":          {"virtualservice/web"},
		"all -n shop":               {"destinationrule/web", "virtualservice/web"},
		"virtualservices -l app=no": nil,
	} {
		t.Run(args, func(t *testing.T) {
			out, diagnostics, _, err := clitest.Split(nil, slices.Concat([]string{"config", "get", "-o", "name"}, strings.Fields(args), m.Flags)...)
			if err != nil || !slices.Equal(strings.Fields(out), want) || (diagnostics == "") != (want != nil) {
				t.Errorf("%q, %q, %v; want %q", out, diagnostics, err, want)
			}
		})
	}
	for _, args := range []string{"vs nothing", "vs/nothing.shop", "vs nothing -A", "vs web.shop -n shop"} {
		if _, code, err := m.Run("", append([]string{"config", "get"}, strings.Fields(args)...)...); code != process.ExitFailure || err == nil {
			t.Errorf("%s: %d, %v", args, code, err)
		}
	}
	if _, _, err := m.Run("", append([]string{"config", "get", "dr/web"}, m.Flags...)...); err == nil ||
		!strings.Contains(err.Error(), "there is one in namespace shop: add -n shop") {
		t.Errorf("the object of another namespace is not pointed to: %v", err)
	}
	out, diagnostics, code, err := clitest.Split(nil, append([]string{"config", "get", "gw", "-o", "json"}, m.Flags...)...)
	if err != nil || code != process.ExitOK || !json.Valid([]byte(out)) || diagnostics != "no objects\n" {
		t.Errorf("nothing as JSON: %q, %q, %v", out, diagnostics, err)
	}
	if out, _, err := m.Run("", "config", "delete", "vs/web.shop", "se/out.side"); err != nil || strings.Count(out, " deleted\n") != 2 ||
		m.Object("VirtualService", "shop", "web") != nil {
		t.Errorf("delete: %q, %v", out, err)
	}
	if m.Object("VirtualService", "default", "web") == nil {
		t.Error("the object of another namespace was deleted")
	}
}

// namespacedFleet is three proxies in two namespaces.
func namespacedFleet() []*configv1.ProxyStatus {
	proxy := func(pod, namespace string) *configv1.ProxyStatus {
		return &configv1.ProxyStatus{NodeId: "sidecar~10.0.0.1~" + pod + "." + namespace + "~x", Namespace: namespace, Workload: pod,
			XdsServer: "xds-server-0/1", Identity: "id-" + pod, Acked: clitest.Revision(3)}
	}
	return []*configv1.ProxyStatus{proxy("web-0", "shop"), proxy("web-1", "shop"), proxy("cart-0", "test")}
}

const shopPods = `
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web, version: v1}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, version: v2}}
---
apiVersion: v1
kind: Pod
metadata: {name: plain-0, namespace: quiet}
`

func TestProxiesOfNamespaces(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(namespacedFleet(), nil)
	if out, _, err := m.Run(shopPods, "config", "apply", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	for args, want := range map[string]string{
		"":                         "web-0.shop web-1.shop cart-0.test",
		"-A -o short":              "web-0.shop web-1.shop cart-0.test",
		"-n shop":                  "web-0.shop web-1.shop",
		"-n test -o wide":          "cart-0.test",
		"-l app=web,version!=v1":   "web-1.shop",
		"-n quiet":                 "",
		"-l app=none":              "",
		"deploy/web -n shop":       "web-0.shop web-1.shop",
		"deploy/web.shop -o short": "web-0.shop web-1.shop",
		"pod/web-1 -n shop":        "web-1.shop",
		"web-1":                    "web-1.shop",
	} {
		t.Run(args, func(t *testing.T) {
			out, diagnostics, _, err := clitest.Split(nil, slices.Concat([]string{"ps"}, strings.Fields(args), m.Flags)...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range strings.Split(out, "\n") {
				if name, _, _ := strings.Cut(line, " "); strings.Contains(name, ".") {
					got = append(got, name)
				}
			}
			if strings.Join(got, " ") != want || (diagnostics == "") != (want != "") {
				t.Errorf("%q, %q; want %q:\n%s", got, diagnostics, want, out)
			}
		})
	}
	if out, _, _, err := clitest.Split(nil, append([]string{"ps", "-n", "quiet", "-o", "json"}, m.Flags...)...); err != nil ||
		!json.Valid([]byte(out)) {
		t.Errorf("none as JSON: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "ps", "-o", "wide"); err != nil || !strings.Contains(out, "id-cart-0") {
		t.Errorf("wide: %q, %v", out, err)
	}
	for args, says := range map[string]string{
		"-n shpo":           `did you mean "shop"?`,
		"wbe-0":             `did you mean "web-0.shop"?`,
		"cart-0 -n shop":    `in namespace "shop"`,
		"deploy/crat":       "there are cart-0.test",
		"something -n test": "there are cart-0.test",
	} {
		if _, code, err := m.Run("", append([]string{"ps"}, strings.Fields(args)...)...); code != process.ExitFailure || err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d, %v", args, code, err)
		}
	}
}

func TestCompletion(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(namespacedFleet(), nil)
	if out, _, err := m.Run(shopObjects+"---"+shopPods, "config", "apply", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	env := map[string]string{"FAIRLEAD_RUN_DIR": m.RunMesh(t)}
	for typed, want := range map[string]string{
		"proxy-status |w":            "web-0.shop web-1.shop",
		"proxy-status -n test |":     "cart-0.test",
		"proxy-status --namespace |": "default quiet shop test",
		"proxy-status -o |":          "short wide json yaml",
		"pc |cl":                     "clusters",
		"pc clusters |w":             "web-0.shop web-1.shop",
		"pc web-0.shop |ro":          "routes",
		"pc routes web-0 |":          "",
		"pc c web-0 --direction |":   "inbound outbound",
		"why |cart":                  "cart-0.test",
		"proxy renew |cart":          "cart-0.test",
		"config get |virtu":          "virtualservice",
		"config get vs,|dest":        "vs,destinationrule",
		"config get vs |":            "web web.shop",
		"config get vs -n shop |":    "web",
		"config get vs/|":            "vs/web vs/web.shop",
		"config delete dr/|":         "dr/web.shop",
		"logs |xds":                  "",
		"logs |fair":                 "fairlead",
		"down |":                     "",
		"config apply -o |":          "short json yaml",
		"vers|":                      "version",
	} {
		t.Run(typed, func(t *testing.T) {
			before, begun, _ := strings.Cut(typed, "|")
			words := strings.Fields(before)
			if !strings.HasSuffix(before, " ") && len(words) > 0 {
				begun, words = words[len(words)-1]+begun, words[:len(words)-1]
			}
			out, _, _, err := clitest.Split(env, slices.Concat([]string{"__complete"}, words, []string{begun})...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range strings.Split(out, "\n") {
				if word, _, _ := strings.Cut(line, "\t"); word != "" && !strings.HasPrefix(word, ":") {
					got = append(got, word)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, _, _, err := clitest.Split(nil, "completion", shell); err != nil || !strings.Contains(out, "__complete") {
			t.Errorf("%s: %d bytes, %v", shell, len(out), err)
		}
	}
	if out, _, _, err := clitest.Split(map[string]string{"FAIRLEAD_RUN_DIR": t.TempDir()}, "__complete", "ps", ""); err != nil ||
		!strings.HasPrefix(out, ":") {
		t.Errorf("without a mesh: %q, %v", out, err)
	}
}
