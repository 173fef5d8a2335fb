package install

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// earlier is an entry of `fairlead rollback --list -o json`.
type earlier struct {
	Number  int
	At      time.Time
	Changes []string
}

func testRollback(t *testing.T, r *rig) {
	past := func() (all []earlier) {
		t.Helper()
		out, _ := r.does(t, 0, "rollback", "--list", "-o", "json")
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return all
	}
	_, said := r.does(t, 1, "rollback", "-d", r.manifests, "-y")
	says(t, said, "revision default is not installed")
	r.install(t, "--set", "values.pilot.env.LEVEL=l0")
	_, said = r.does(t, 1, "rollback", "-d", r.manifests, "-y")
	says(t, said, "revision default has no earlier specification: it was not changed since it was installed")
	if all := past(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	for _, level := range []string{"l1", "l2", "l3", "l4", "l5", "l6"} {
		r.install(t, "--set", "values.pilot.env.LEVEL="+level)
	}
	all := past()
	if len(all) != 5 || all[0].At.IsZero() || all[4].Number != 5 ||
		!slices.Equal(all[1].Changes, []string{`- values.pilot.env.LEVEL: l6`, `+ values.pilot.env.LEVEL: l4`}) {
		t.Fatalf("%+v", all)
	}
	out, _ := r.does(t, 0, "rollback", "--list")
	says(t, out, "NUMBER", "1.4.0", "+ values.pilot.env.LEVEL: l1")
	_, said = r.does(t, 1, "rollback", "-d", r.manifests, "-y", "--to", "6")
	says(t, said, "revision default has 5 earlier specifications, and no number 6")
	_, said = r.does(t, 2, "rollback", "-d", r.manifests, "-y", "--to", "0")
	says(t, said, "numbered from 1")
	before := r.snapshot(t)
	out, _ = r.does(t, 0, "rollback", "-d", r.manifests, "--to", "3", "--dry-run")
	says(t, out, "- values.pilot.env.LEVEL: l6", "+ values.pilot.env.LEVEL: l3", "ConfigMap mesh/server", "data.level: ")
	_, said = r.does(t, 2, "rollback", "-d", r.manifests, "--to", "3") // nobody answers
	says(t, said, "+ values.pilot.env.LEVEL: l3", "Proceed?", "--skip-confirmation answers yes")
	if diff := changed(before, r.snapshot(t)); len(diff) > 0 {
		t.Errorf("what was only shown changed %v", diff)
	}
	r.does(t, 0, "rollback", "-d", r.manifests, "--to", "3", "-y", "--wait=false")
	r.level(t, "server", "l3")
	// The rollback is a change as others.
	if all = past(); len(all) != 5 || !slices.Equal(all[0].Changes, []string{`- values.pilot.env.LEVEL: l3`, `+ values.pilot.env.LEVEL: l6`}) {
		t.Errorf("%+v", all)
	}
	r.does(t, 0, "rollback", "-d", r.manifests, "-y", "--wait=false")
	r.level(t, "server", "l6")
	out, _ = r.does(t, 0, "rollback", "--print")
	says(t, out, "kind: IstioOperator", "LEVEL: ")
}

// testRollbackOfWhatFailed: a change that does not become ready is no earlier specification, and the way back is known.
func testRollbackOfWhatFailed(t *testing.T, r *rig) {
	r.install(t)
	_, said := r.does(t, 1, "install", "-d", r.manifests, "-y", "--timeout", "700ms", "--set", "values.pilot.env.LEVEL=bad")
	says(t, said, "run the same command again to complete it, with what is wrong corrected, or bring back what was installed before: "+
		"fairlead rollback --revision default --manifests ")
	r.level(t, "server", "bad")
	r.does(t, 0, "rollback", "-d", r.manifests, "-y", "--wait=false")
	r.level(t, "server", "info")
	out, _ := r.does(t, 0, "rollback", "--list")
	says(t, out, "failed 2", "+ values: …")
	_, said = r.does(t, 1, "rollback", "-d", r.manifests, "-y")
	says(t, said, "revision default has no earlier specification that was completed")
}
