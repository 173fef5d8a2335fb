package local

import (
	"os"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestChangedDeploymentsAreNamed saves files with other Deployments than at the start.
func TestChangedDeploymentsAreNamed(t *testing.T) {
	w := newFixture(t, "")
	w.start(t)
	w.ready(t, "True")
	file := w.cfg.ConfigPaths[0]
	was := string(mustRead(t, file))
	testkit.WriteFile(t, file, []byte(strings.Replace(was, "spec:\n", "spec:\n  replicas: 3\n", 1)))
	testkit.Eventually(t, within, w.prints("warning: Deployment shop/web: a change of spec.replicas is not followed"))
	testkit.WriteFile(t, file, []byte(strings.Replace(was, "periodSeconds: 1", "periodSeconds: 2", 1)))
	testkit.Eventually(t, within, w.prints("warning: Deployment shop/web: a change of spec.template is not followed"))
	testkit.WriteFile(t, file, []byte(strings.Replace(was, "name: web, namespace", "name: other, namespace", 1)))
	testkit.Eventually(t, within, w.prints("warning: Deployment shop/web is gone from the files, and its Pods go on"))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, within, w.prints("it is named with -f: put it back"))
}
