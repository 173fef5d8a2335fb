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
