package differential

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes/apiservertest"
)

// TestMain makes few histories unless -rapid.checks names their number, and fewer still under the race detector, which
// takes ten times as long.
func TestMain(m *testing.M) {
	flag.Parse()
	number := "60"
	if raceDetector {
		number = "10"
	}
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set(number); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestStreamedAndScratchAgree draws changes of the store, of files and of an API server: objects of every kind that
// are created, changed, made invalid, deleted and restored, alone or together with others, while the pipeline is held
// up or not, and a subscriber that comes again. Connections to the API server are lost, it forgets its history, or is
// away for a while. At the end the newest state of each source must be in force, and subscribers, old and new, must
// hold what a mesh of its own makes of the objects in force in one step, byte for byte. -rapid.checks sets the number
// of histories. A failure prints the shortest history found that fails, and the seed that draws it again.
func TestStreamedAndScratchAgree(t *testing.T) {
	n := 0
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		n++
		r, stop := newRig(t, filepath.Join(dir, fmt.Sprint(n)), apiservertest.Config{
			PageSize: rapid.IntRange(0, 3).Draw(rt, "page size"), WatchList: rapid.Bool().Draw(rt, "lists are streamed"),
		})
		defer stop()
		sub, err := r.subscribe(map[resource.Key]*configv1.Resource{})
		check(rt, err)
		defer func() { sub.stop() }()
		for range rapid.IntRange(1, 3).Draw(rt, "parts") {
			r.edit(rt, rapid.IntRange(1, 25).Draw(rt, "edits"))
			r.agree(rt, sub)
			if rapid.Bool().Draw(rt, "subscribe again") {
				sub.stop()
				sub, err = r.subscribe(sub.held)
				check(rt, err)
			}
		}
		fresh, err := r.subscribe(map[resource.Key]*configv1.Resource{})
		check(rt, err)
		defer fresh.stop()
		r.agree(rt, fresh)
	})
}

func check(rt *rapid.T, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatal(err)
	}
}

// edit makes n changes, some of them while the pipeline stands still.
func (r *rig) edit(rt *rapid.T, n int) {
	shut := false
	defer func() {
		if shut {
			r.gate.Unlock()
		}
	}()
	for range n {
		if rapid.Bool().Draw(rt, "time passes") {
			r.clock.Advance(time.Second)
		}
		if rapid.IntRange(0, 5).Draw(rt, "gate") == 0 {
			if shut = !shut; shut {
				r.note("pipeline stands still")
				r.gate.Lock()
			} else {
				r.note("pipeline goes on")
				r.gate.Unlock()
			}
		}
		var together []drawn
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 3, 5}).Draw(rt, "together") {
			r.drawn++
			together = append(together, drawObject(rt, drawIdent(rt), r.drawn))
		}
		deleted := rapid.IntRange(0, 3).Draw(rt, "delete") == 0
		verb := "write"
		if deleted {
			verb = "delete"
		}
		switch rapid.SampledFrom([]string{"store", "store", "cluster", "cluster", "cluster", "cluster", "file", "file", "trouble"}).Draw(rt,
			"source") {
		case "store":
			if deleted {
				r.note("store: delete", together[0])
				check(rt, r.remove(together[0].ident))
			} else {
				r.note("store: write", together...)
				check(rt, r.apply(together))
			}
		case "cluster":
			r.note("cluster: "+verb, together...)
			for _, d := range together {
				switch {
				case d.ident.kind == "v1 Endpoints": // the source reads EndpointSlices instead
				case deleted:
					r.cluster.remove(d.ident)
				default:
					check(rt, r.cluster.put(d, r.clock.Now()))
				}
			}
			if deleted && together[0].ident.kind == "v1 Namespace" {
				r.cluster.removeNamespace(together[0].ident.name)
			}
		case "trouble":
			r.note("cluster: " + r.cluster.trouble(rt))
		default:
			name := rapid.SampledFrom([]string{"a.yaml", "b.yaml"}).Draw(rt, "file")
			if r.files[name] == nil {
				r.files[name] = map[ident]drawn{}
			}
			r.note(name+": "+verb, together...)
			for _, d := range together {
				if r.files[name][d.ident] = d; deleted {
					delete(r.files[name], d.ident)
				}
			}
			check(rt, r.write(name))
		}
	}
}

// agree waits until the newest state of each source is in force, and compares what the subscriber then holds with what
// a mesh of its own makes of the objects in force.
func (r *rig) agree(rt *rapid.T, sub *subscriber) {
	r.note("all is compared")
	defer func() {
		if rt.Failed() {
			rt.Logf("the history:\n%s", r.history.String())
		}
	}()
	check(rt, r.cluster.calm(&r.drawn, r.clock.Now()))
	expected := r.expected()
	check(rt, eventually(func() error {
		_, got := r.inForce()
		if wrong := differences(expected, got); len(wrong) > 0 || !r.cluster.HasSynced() {
			return fmt.Errorf("the API server was read: %v\n%s", r.cluster.HasSynced(), strings.Join(wrong, "\n"))
		}
		r.cluster.agreed(got)
		return nil
	}))
	sequence, err := r.line.Wait(r.t.Context())
	check(rt, err)
	check(rt, sub.until(sequence))
	list, _ := r.inForce()
	var changes []normalise.Change
	for _, o := range rapid.Permutation(list).Draw(rt, "order") {
		changes = append(changes, normalise.Change{Key: o.Key, Object: o})
	}
	scratch := normalise.New(normalise.Config{}).Apply(changes)
	for _, err := range scratch.Errors {
		rt.Error(err)
	}
	want := map[resource.Key]*configv1.Resource{}
	for _, res := range scratch.Upserts {
		want[resource.KeyOf(res.Key)] = res
	}
	for k, res := range sub.held {
		switch w := want[k]; {
		case w == nil:
			rt.Errorf("%v is held and should not be: %v", k, res)
		case !bytes.Equal(encoded(rt, w), encoded(rt, res)):
			rt.Errorf("%v differs (-want +held):\n%s", k, cmp.Diff(w, res, protocmp.Transform()))
		}
		delete(want, k)
	}
	for k := range want {
		rt.Errorf("%v is missing", k)
	}
}

func encoded(rt *rapid.T, res *configv1.Resource) []byte {
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(res)
	check(rt, err)
	return out
}
