package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// bad are objects that must be refused, with what the refusal must say: the object, the field, and the remedy.
var bad = []struct {
	name, yaml string
	says       []string
}{
	{
		name: "broken-yaml",
		yaml: "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: server, namespace: apps\nspec:\n",
		says: []string{"not valid YAML", ".yaml:"},
	},
	{
		name: "unknown-field",
		yaml: virtualService("    - rout: [{destination: {host: server, subset: v1}}]\n"),
		says: []string{"VirtualService apps/server", "spec.http[0].rout", "route"},
	},
	{
		name: "invalid-route",
		yaml: virtualService("    - route: [{destination: {host: server, subset: v1}, weight: -5}, {destination: {host: server, subset: v2}, " +
			"weight: 105}]\n"),
		says: []string{"VirtualService apps/server", "spec.http[0].route[0].weight", "-5"},
	},
	{
		name: "bad-regex",
		yaml: virtualService("    - match: [{uri: {regex: \"(\"}}]\n      route: [{destination: {host: server}}]\n"),
		says: []string{"VirtualService apps/server", "spec.http[0].match[0].uri.regex"},
	},
	{
		name: "wrong-type",
		yaml: virtualService("    - timeout: soon\n      route: [{destination: {host: server}}]\n"),
		says: []string{"VirtualService apps/server", "spec.http[0].timeout", "soon"},
	},
	{
		name: "unknown-kind",
		yaml: "apiVersion: networking.istio.io/v1\nkind: VirtualServise\nmetadata: {name: server, namespace: apps}\nspec: {}\n",
		says: []string{"VirtualServise", "VirtualService"},
	},
}

// TestRefusals gives the mesh objects it must refuse, by the CLI and in a file. The last good version stays in force.
func TestRefusals(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/echo.yaml"}})
	m.WriteConfig(t, "route.yaml", virtualService(`
    - route: [{destination: {host: server, subset: v1}}]
      headers:
        response: {set: {x-route: good}}
`))
	m.WaitReady(t)
	client := m.From(t, "client-0")
	good := func() error {
		a, err := client.Get(t.Context(), "http://server/")
		return errors.Join(err, header(a, "X-Route", "good"))
	}
	m.Eventually(t, takesEffect, good)

	t.Run("by the CLI", func(t *testing.T) {
		for _, b := range bad {
			t.Run(b.name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), b.name+".yaml")
				if err := os.WriteFile(file, []byte(b.yaml), 0o600); err != nil {
					t.Fatal(err)
				}
				code, out, errOut := m.CLI(t, "config", "apply", "-f", file)
				if code != 3 {
					t.Errorf("exit code %d, want 3: %s%s", code, out, errOut)
				}
				for _, want := range append(b.says, b.name+".yaml") {
					if !strings.Contains(errOut, want) {
						t.Errorf("the error lacks %q:\n%s", want, errOut)
					}
				}
				if err := good(); err != nil {
					t.Error(err)
				}
			})
		}
	})

	t.Run("in a file", func(t *testing.T) {
		for _, b := range bad {
			t.Run(b.name, func(t *testing.T) {
				// In place of the good file, for one case in which the good object is gone from the files as well.
				m.WriteConfig(t, "route.yaml", "# "+b.name+"\n"+b.yaml)
				m.Eventually(t, takesEffect, func() error {
					log := m.Log(t, "config-watcher")
					for _, want := range append(b.says, "route.yaml") {
						if !strings.Contains(log, want) {
							return fmt.Errorf("config-watcher's log lacks %q", want)
						}
					}
					return nil
				})
				if err := good(); err != nil {
					t.Error(err)
				}
			})
		}
	})

	t.Run("a good file after bad ones", func(t *testing.T) {
		m.WriteConfig(t, "route.yaml", virtualService(`
    - route: [{destination: {host: server, subset: v2}}]
      headers:
        response: {set: {x-route: better}}
`))
		m.Eventually(t, takesEffect, func() error {
			a, err := client.Get(t.Context(), "http://server/")
			return errors.Join(err, header(a, "X-Route", "better"))
		})
	})

	t.Run("exit codes", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "good.yaml")
		if err := os.WriteFile(file, []byte(virtualService("    - route: [{destination: {host: server, subset: v2}}]\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			args []string
			want int
		}{
			{[]string{"config", "apply", "-f", file}, 0},
			{[]string{"config", "apply", "--no-such-flag"}, 2},
			{[]string{"config", "frobnicate"}, 2},
			{[]string{"config", "apply", "-f", file + ".missing"}, 2},
			{[]string{"config", "get", "virtualservice", "no-such-object"}, 1},
			{[]string{"proxy-config", "no-such-proxy", "clusters"}, 1},
		} {
			if code, out, errOut := m.CLI(t, c.args...); code != c.want {
				t.Errorf("fairlead %v: exit code %d, want %d: %s%s", c.args, code, c.want, out, errOut)
			}
		}
	})
}
