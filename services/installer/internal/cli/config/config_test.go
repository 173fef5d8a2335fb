package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/cli/command"
)

// TestPodsHaveTheirAddress lists Pods alone, and among other objects.
func TestPodsHaveTheirAddress(t *testing.T) {
	m := clitest.New(t)
	pod := clitest.File(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: shop}\nstatus: {podIP: 127.66.1.4}\n---\n"+
		clitest.Object)
	m.MustPrint(t, []string{"config", "apply", "-f", pod}, "created")
	m.MustPrint(t, []string{"config", "get", "pods", "-A"}, "ADDRESS", "127.66.1.4")
	if out, _, err := m.Run("", "config", "get", "-A"); err != nil || strings.Contains(out, "ADDRESS") {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, code, err := m.Run("", "config", "apply", "mesh.yaml"); code != process.ExitUsage ||
		!strings.Contains(err.Error(), "`fairlead config apply -f mesh.yaml`") {
		t.Errorf("a file without -f: %d, %v", code, err)
	}
}

func TestConfigOfEverySource(t *testing.T) {
	m := clitest.NewWithFile(t)
	m.MustPrint(t, []string{"config", "get"}, "SOURCE", "LOCATION",
		"file     mesh.yaml:515 (its file is not whole, stays until 2026-01-02T03:04:05Z)")
	m.MustPrint(t, []string{"config", "get", "vs", "web", "-n", "shop", "-o", "yaml"}, "hosts:\n  - web")
	m.MustPrint(t, []string{"config", "status"}, "SOURCE   STATE", "file     read",
		"STAYS     VirtualService shop/web   file     mesh.yaml:515   mesh.yaml is gone", "UNREAD    HTTPRoute shop/r")
	for _, args := range [][]string{{"config", "status", "vs/web", "-n", "shop"}, {"config", "status", "vs", "web", "-n", "shop"}} {
		m.MustPrint(t, args, "VirtualService shop/web\nin force:  yes\nsource:    file\nlocation:  mesh.yaml:515", "STAYS")
	}
	m.MustPrint(t, []string{"config", "status", "vs/web", "-n", "shop", "-o", "json"}, `"location": "mesh.yaml:515"`, `"FINDING_TYPE_STAYS"`,
		`"reason": "Rejected"`)
	m.MustPrint(t, []string{"config", "status", "-o", "table"},
		"OBJECT                    SOURCE   GENERATION   ACCEPTED   PROGRAMMED   MESSAGE",
		"VirtualService shop/web   file     -            True       Rejected     1 of 2 proxies acknowledged")
	m.MustPrint(t, []string{"config", "status", "vs/web", "-n", "shop"},
		"file     Programmed   False    Rejected   -            1 of 2 proxies acknowledged")
	name := clitest.File(t, clitest.Object)
	m.MustPrint(t, []string{"config", "apply", "-f", name}, "VirtualService shop/web created, overrides mesh.yaml:515\n")
	m.MustPrint(t, []string{"config", "apply", "-f", name, "-o", "json"}, `"mesh.yaml:515"`)
	m.MustPrint(t, []string{"config", "get", "vs"}, "memory   (overrides mesh.yaml:515)")
	m.MustPrint(t, []string{"config", "get", "--source", "memory"}, "memory")
	if out, _, err := m.Run("", "config", "get", "--source", "file"); err != nil || strings.Contains(out, "web") {
		t.Errorf("of files, where the store's counts: %q, %v", out, err)
	}
	m.MustPrint(t, []string{"config", "status", "vs/web", "-n", "shop"}, "source:    memory", "overrides: mesh.yaml:515")
	m.MustPrint(t, []string{"config", "delete", "-f", name}, "VirtualService shop/web deleted; that of mesh.yaml:515 is in force\n")
}

func TestUnknownKindsAndNamespaces(t *testing.T) {
	m := clitest.NewWithFile(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"config", "get", "virtualservce"}, process.ExitUsage, "did you mean VirtualService?"},
		{[]string{"config", "get", "virtualservics", "web"}, process.ExitUsage, "did you mean VirtualService?"},
		{[]string{"config", "get", "deployments"}, process.ExitUsage, "kinds are VirtualService, DestinationRule"},
		{[]string{"config", "status", "gatway/web"}, process.ExitUsage, "did you mean Gateway?"},
		{[]string{"config", "status", "vs/"}, process.ExitUsage, "write KIND/NAME"},
		{[]string{"config", "status", "vs/other", "-n", "shop"}, process.ExitFailure, "is not there"},
		{[]string{"config", "delete", "destinatonrule", "web"}, process.ExitUsage, "did you mean DestinationRule?"},
		{[]string{"config", "can-i", "get", "servce"}, process.ExitUsage, "did you mean Service?"},
		{[]string{"config", "get", "vs", "-n", "shp"}, process.ExitFailure, `namespace "shp"`},
		{[]string{"proxy-status", "-n", "shp"}, process.ExitFailure, `namespace "shp"`},
	} {
		if _, code, err := m.Run("", tc.args...); code != tc.code || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %d, %v; want %d, %q", tc.args, code, err, tc.code, tc.want)
		}
	}
	m.MustPrint(t, []string{"proxy-status", "-n", "shop"}, "newest revision")
}

func TestListsAndUnreadKindsInFiles(t *testing.T) {
	m := clitest.New(t)
	list := clitest.File(t, "apiVersion: v1\nkind: List\nitems:\n- "+strings.ReplaceAll(strings.TrimSpace(clitest.Object), "\n", "\n  ")+"\n")
	m.MustPrint(t, []string{"config", "apply", "-f", list}, "VirtualService shop/web created\n")
	deployment := clitest.File(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n---\n"+clitest.Object)
	m.MustPrint(t, []string{"config", "delete", "-f", deployment}, "Deployment default/web skipped (",
		"objects.yaml:1): the store keeps no objects of this kind\n", "VirtualService shop/web deleted\n")
	m.MustPrint(t, []string{"config", "apply", "-f", list}, "created")
	m.MustPrint(t, []string{"config", "delete", "-f", list}, "VirtualService shop/web deleted\n")
	typo := clitest.File(t, strings.Replace(clitest.Object, "VirtualService", "VirtualServce", 1))
	if _, code, err := m.Run("", "config", "delete", "-f", typo); code != process.ExitRefused ||
		!strings.Contains(err.Error(), "did you mean VirtualService?") {
		t.Errorf("a misspelt kind: %d, %v", code, err)
	}
}

func TestEdit(t *testing.T) {
	m := clitest.NewWithFile(t)
	dir := t.TempDir()
	run := func(script string) (string, error) {
		t.Helper()
		editor := filepath.Join(dir, "editor")
		testkit.WriteFile(t, editor, []byte("#!/bin/sh\n"+script))
		if err := os.Chmod(editor, 0o700); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := cli.Run(t.Context(), command.Env{Out: &out, Err: &out,
			Getenv: func(name string) string { return map[string]string{"EDITOR": editor}[name] }},
			append([]string{"config", "edit", "vs/web", "-n", "shop"}, m.Flags...))
		return out.String(), err
	}
	if out, err := run("true"); err != nil || out != "VirtualService shop/web unchanged\n" ||
		m.Object("VirtualService", "shop", "web") != nil {
		t.Errorf("nothing changed: %q, %v", out, err)
	}
	if out, err := run(`sed -i s/web/www/ "$1"; sed -i "s/name: www/name: web/" "$1"`); err != nil ||
		out != "VirtualService shop/web created, overrides mesh.yaml:515\n" {
		t.Errorf("changed: %q, %v", out, err)
	}
	if _, err := run("exit 1"); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("an editor that fails: %v", err)
	}
	_, err := run(`echo "# broken" >> "$1"`)
	if err == nil || process.ExitCode(err) != process.ExitRefused || !strings.Contains(err.Error(), "what you have written is in ") {
		t.Fatalf("refused: %v", err)
	}
	_, kept, _ := strings.Cut(err.Error(), "what you have written is in ")
	if text, err := os.ReadFile(kept); err != nil || !strings.Contains(string(text), "# broken") {
		t.Errorf("kept %q, %v", text, err)
	}
	_ = os.Remove(kept)
}

// TestFilesWithoutAnObject: one that is named is refused, one of a directory is passed over.
func TestFilesWithoutAnObject(t *testing.T) {
	m := clitest.New(t)
	dir := t.TempDir()
	comment := filepath.Join(dir, "comment.yaml")
	testkit.WriteFile(t, comment, []byte("# c\n---\n"))
	for _, command := range []string{"apply", "delete"} {
		for stdin, args := range map[string][]string{"": {"-f", comment}, "# c\n": {"-f", "-"}} {
			if _, code, err := m.Run(stdin, append([]string{"config", command}, args...)...); code != process.ExitRefused || err == nil ||
				!strings.Contains(err.Error(), "holds no object") {
				t.Errorf("%s %v: %d, %v", command, args, code, err)
			}
		}
	}
	if _, code, err := m.Run("", "config", "apply", "-f", dir); code != process.ExitRefused ||
		!strings.Contains(err.Error(), dir+": no file in it holds an object") {
		t.Errorf("a directory without an object: %d, %v", code, err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "empty.yaml"), nil)
	testkit.WriteFile(t, filepath.Join(dir, "web.yaml"), []byte(clitest.Object))
	m.MustPrint(t, []string{"config", "apply", "-f", dir}, "warning: "+comment+": holds no object\n", "empty.yaml: holds no object",
		"VirtualService shop/web created\n")
}

// TestGatewaysOfBothAPIs: status names the Gateway of the other API that has the name, whether or not the one that is
// asked for is there.
func TestGatewaysOfBothAPIs(t *testing.T) {
	m := clitest.New(t)
	const (
		istio = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: NAME, namespace: shop}\n"
		api   = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: NAME, namespace: shop}\n"
	)
	for name, texts := range map[string][]string{"old": {istio}, "new": {api}, "both": {istio, api}} {
		for _, text := range texts {
			m.MustPrint(t, []string{"config", "apply", "-f", clitest.File(t, strings.Replace(text, "NAME", name, 1))}, "created")
		}
	}
	const isAPI = "there is a Gateway of the Gateway API of that name: fairlead config status gtw/"
	const isIstios = "there is a Gateway of Istio's API of that name: fairlead config status gateway/"
	for _, tc := range []struct {
		object string
		found  bool
		hint   string
	}{
		{"gateway/old", true, ""},
		{"gateway/new", false, isAPI + "new -n shop"},
		{"gateway/new.shop", false, isAPI + "new -n shop"},
		{"gateway/both", true, isAPI + "both -n shop"},
		{"gtw/old", false, isIstios + "old -n shop"},
		{"gateway.gateway.networking.k8s.io/both", true, isIstios + "both -n shop"},
		{"gtw/new", true, ""},
		{"vs/both", false, ""},
	} {
		args := []string{"config", "status", tc.object}
		if !strings.Contains(tc.object, ".shop") {
			args = append(args, "-n", "shop")
		}
		out, _, err := m.Run("", args...)
		if err != nil {
			out += err.Error()
		}
		hinted := strings.Contains(out, "there is a Gateway")
		if (err == nil) != tc.found || hinted != (tc.hint != "") || !strings.Contains(out, tc.hint) {
			t.Errorf("%s: %s", tc.object, out)
		}
	}
}

// TestNameWithItsNamespace: every command takes NAME.NAMESPACE.
func TestNameWithItsNamespace(t *testing.T) {
	m := clitest.NewWithFile(t)
	m.MustPrint(t, []string{"config", "status", "vs/web.shop"}, "VirtualService shop/web\nin force:  yes\nsource:    file", "STAYS")
	m.MustPrint(t, []string{"config", "status", "vs", "web.shop"}, "VirtualService shop/web\nin force:  yes")
	if _, code, err := m.Run("", "config", "status", "vs/other.shop"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "VirtualService/default/other.shop is not there") {
		t.Errorf("status of none: %d, %v", code, err)
	}
	var out strings.Builder
	err := cli.Run(t.Context(), command.Env{Out: &out, Err: &out,
		Getenv: func(name string) string { return map[string]string{"EDITOR": "true"}[name] }},
		append([]string{"config", "edit", "vs", "web.shop"}, m.Flags...))
	if err != nil || out.String() != "VirtualService shop/web unchanged\n" {
		t.Errorf("edit: %q, %v", out.String(), err)
	}
	// The server, which has the object of a file, says why it does not delete it.
	if _, code, err := m.Run("", "config", "delete", "vs/web.shop"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "VirtualService/shop/web ") {
		t.Errorf("delete: %d, %v", code, err)
	}
}

// TestWaitForAnObjectThatIsNotThere: at the timeout it names the nearest one.
func TestWaitForAnObjectThatIsNotThere(t *testing.T) {
	m := clitest.NewWithFile(t)
	const lists = "; `fairlead config get VirtualService -A` lists what there is"
	for args, want := range map[string]string{
		"vs/wbe.shop": `VirtualService shop/wbe: not programmed within 300ms: no such object is known; did you mean "web" in namespace shop?` +
			lists,
		"vs/web2":   `; did you mean "web" in namespace shop?` + lists,
		"vs/web":    ": no such object is known; there is one in namespace shop: add -n shop" + lists,
		"vs/banana": ": no such object is known" + lists,
	} {
		if _, code, err := m.Run("", "wait", args, "--timeout", "300ms"); code != process.ExitFailure || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v", args, code, err)
		}
	}
}

func TestWaitCompletesObjects(t *testing.T) {
	m := clitest.NewWithFile(t)
	args := append([]string{"__complete", "wait"}, m.Flags...)
	if out, _, err := clitest.Run("", append(args, "vs/w")...); err != nil || !strings.HasPrefix(out, "vs/web.shop\n") {
		t.Errorf("%q, %v", out, err)
	}
}
