package install

import (
	"reflect"
	"testing"
)

// testAway takes the API server away from an installation, before and after each of its writes.
func testAway(t *testing.T, r *rig) {
	change := []string{"--set", "values.pilot.env.LEVEL=debug", "--set", "profile=full"}
	r.install(t)
	before := contents(r.snapshot(t))
	r.proxy.set(func(p *proxy) { p.away = true })
	_, said := r.does(t, 1, r.installing(change...)...)
	r.proxy.set(func(p *proxy) { p.away = false })
	says(t, said, "the API server at "+r.proxy.URL, "check --kubeconfig and --context")
	if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, before) {
		t.Errorf("it differs: %v", differing(got, before))
	}

	r.proxy.watch(nil)
	r.install(t, change...)
	writes := len(r.proxy.seen())
	wanted := contents(r.snapshot(t))
	for stop := 1; stop < writes; stop++ {
		r.install(t)
		r.proxy.watch(func(n int) {
			if n == stop { // this write comes through, and nothing after it
				r.proxy.set(func(p *proxy) { p.away = true })
			}
		})
		_, said := r.does(t, 1, r.installing(change...)...)
		r.proxy.watch(nil)
		r.proxy.set(func(p *proxy) { p.away = false })
		says(t, said, "run the same command again to complete it")
		r.install(t, change...)
		if got := contents(r.snapshot(t)); !reflect.DeepEqual(got, wanted) {
			t.Errorf("after write %d away and completed, the cluster differs: %v", stop, differing(got, wanted))
		}
	}
}

// testFirstTwoAtOnce: of two first installations at once each either completes or says that the other overtook it, and
// the next completes.
func testFirstTwoAtOnce(t *testing.T, r *rig) {
	r.proxy.watch(func(n int) {
		if n == 1 {
			if out, said, code := r.run(t, r.Kubeconfig, r.installing("--set", "values.pilot.env.EXTRA=theirs")...); code != 0 {
				t.Errorf("the other installation: %s%s", out, said)
			}
		}
	})
	_, said := r.does(t, 1, r.installing()...)
	r.proxy.watch(nil)
	says(t, said, "the inventory of revision default in mesh was changed by another installation that runs now")
	r.get(t, configMaps, "mesh", "server-extra")
	r.install(t)
	r.ready(t, "mesh", "server")
	r.does(t, 0, "verify-install")
}
