package install

import (
	"strings"
	"testing"
)

func testUpgradeCommand(t *testing.T, r *rig) {
	version := func(v string) string {
		return writePackage(t, map[string]string{"charts/base/Chart.yaml": strings.Replace(charts["charts/base/Chart.yaml"], "1.4.0", v, 1)})
	}
	upgrade := func(code int, dir string, a ...string) (out, said string) {
		return r.does(t, code, append([]string{"upgrade", "-d", dir, "-y", "--wait=false"}, a...)...)
	}
	_, said := upgrade(1, r.manifests)
	says(t, said, "revision default is not installed in namespace mesh: there is nothing to upgrade")
	r.install(t)
	_, said = upgrade(3, version("1.6.0"))
	says(t, said, "1.4.0 is installed, and 1.6.0 is more than one minor version away", "nothing was changed")
	_, said = upgrade(3, version("1.3.9"))
	says(t, said, "1.4.0 is installed, and 1.3.9 is older")
	out, said := upgrade(0, version("1.5.1"), "--set", "values.pilot.env.LEVEL=debug")
	says(t, said, "1.4.0 is upgraded to 1.5.1")
	says(t, out, "1 configured")
	upgrade(3, version("1.7.0"))
	upgrade(0, version("1.7.0"), "--set", "values.pilot.env.LEVEL=debug", "--force")

	level := func() any { return r.get(t, configMaps, "mesh", "server").Object["data"].(map[string]any)["level"] }
	if level() != "debug" {
		t.Errorf("level is %v", level())
	}
	for _, want := range []string{"info", "debug"} {
		r.does(t, 0, "rollback", "-d", r.manifests, "-y", "--wait=false")
		if level() != want {
			t.Errorf("after a rollback level is %v, expected %s", level(), want)
		}
	}
}

// testRecreate: what cannot be changed is named, and made anew where that is asked for.
func testRecreate(t *testing.T, r *rig) {
	r.install(t)
	old := r.manifests
	defer func() { r.manifests = old }()
	r.manifests = writePackage(t, map[string]string{"charts/server/templates/all.yaml": strings.NewReplacer(
		"selector: {matchLabels: {app: {{ $name }}}}", "selector: {matchLabels: {app: {{ $name }}, tier: mesh}}",
		"metadata: {labels: {app: {{ $name }}}}", "metadata: {labels: {app: {{ $name }}, tier: mesh}}",
		"spec: {selector: {app: {{ $name }}}, ports", "spec: {clusterIP: None, selector: {app: {{ $name }}}, ports",
	).Replace(charts["charts/server/templates/all.yaml"])})
	before := r.snapshot(t)
	_, said := r.does(t, 1, r.installing()...)
	says(t, said, "nothing was changed: 2 objects cannot be changed as they are", "Deployment mesh/server: spec.selector",
		"Service mesh/server: spec.clusterIP", "--recreate")
	_, said = r.does(t, 2, "install", "-d", r.manifests, "--wait=false") // nobody answers
	says(t, said, "Deployment mesh/server is deleted and made anew: spec.selector",
		"2 objects are deleted and made anew, which interrupts what they do. Revision default")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	out, _ := r.install(t, "--recreate")
	says(t, out, "2 made anew")
	selector := r.get(t, deployments, "mesh", "server").Object["spec"].(map[string]any)["selector"].(map[string]any)
	if match := selector["matchLabels"].(map[string]any); match["tier"] != "mesh" {
		t.Errorf("%v", match)
	}
	out, _ = r.install(t)
	says(t, out, "10 unchanged")

	// Without the field the API server would leave the Service headless, and say nothing.
	address := func() any { return r.get(t, services, "mesh", "server").Object["spec"].(map[string]any)["clusterIP"] }
	if address() != "None" {
		t.Fatalf("clusterIP is %v", address())
	}
	r.manifests = writePackage(t, map[string]string{"charts/server/templates/all.yaml": strings.NewReplacer(
		"selector: {matchLabels: {app: {{ $name }}}}", "selector: {matchLabels: {app: {{ $name }}, tier: mesh}}",
		"metadata: {labels: {app: {{ $name }}}}", "metadata: {labels: {app: {{ $name }}, tier: mesh}}",
	).Replace(charts["charts/server/templates/all.yaml"])})
	_, said = r.does(t, 1, r.installing()...)
	says(t, said, "nothing was changed: 1 objects cannot be changed as they are", "Service mesh/server: spec.clusterIP", "--recreate")
	out, _ = r.install(t, "--recreate")
	says(t, out, "1 made anew")
	if at := address(); at == "None" || at == "" {
		t.Errorf("clusterIP is %v", at)
	}
	out, _ = r.install(t)
	says(t, out, "10 unchanged")
}
