package app

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Declarations of --registry-dir are listed with what is wrong with them, and the mesh is served without a registry
// that cannot be read.
func TestRegistriesOfADirectory(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.RegistryDir, o.RegistryTimeout, o.RegistryAllow = t.TempDir(), time.Second, []string{"127.0.0.0/8"}
	text := "address: http://" + testkit.FreeAddress(t).String() + "\ndatacenter: dc1\nrules: [{services: ['*'], namespace: consul}]\n"
	testkit.WriteFile(t, filepath.Join(o.RegistryDir, "east.yaml"), []byte(text))
	testkit.WriteFile(t, filepath.Join(o.RegistryDir, "west.yaml"),
		[]byte("address: http://169.254.169.254:8500\ndatacenter: dc1\nrules: [{services: [a], namespace: b}]\n"))
	r := f.start(o)
	testkit.Eventually(t, testkit.Patience, func() error {
		page := r.body(t, "/debug/sources", f.admin())
		for _, want := range []string{`"registries"`, `"consul/east"`, "west.yaml", "--registry-allow-addresses", `"TIMEOUT"`, `"REFUSED"`} {
			if !strings.Contains(page, want) {
				return fmt.Errorf("/debug/sources lacks %q: %s", want, page)
			}
		}
		return nil
	})
	seen := map[string]int{}
	for _, f := range testkit.Must(r.Registry.Gather())(t) {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "source" && l.GetValue() == "consul/east" {
					seen[strings.TrimPrefix(f.GetName(), "fairlead_config_watcher_")]++
				}
			}
		}
	}
	for _, name := range []string{"registry_followed_timestamp_seconds", "registry_watches", "registry_polled", "registry_requests_total",
		"source_objects", "source_problems"} {
		if seen[name] != 1 {
			t.Errorf("consul/east has %d of metric %s", seen[name], name)
		}
	}
	s := r.subscribe(nil, nil)
	s.next()
}
