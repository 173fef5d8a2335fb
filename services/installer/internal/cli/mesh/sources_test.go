package mesh_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// withheld is a source that withholds 30 objects.
func withheld() *configv1.SourceStatus {
	return &configv1.SourceStatus{
		Name: "kubernetes/east", State: configv1.SourceState_SOURCE_STATE_HELD, Objects: 40, Problem: "lacks much", Remedy: "bring it back",
		StaleSince: timestamppb.New(time.Now().Add(-10 * time.Second)),
		Withheld:   []*configv1.Withheld{{What: "Service", Objects: 20}, {What: "Pod", Objects: 10}},
	}
}

// two returns two replicas of config-watcher, and the flags that name both; the second one has other keys, so it
// answers nobody.
func two(t *testing.T) (first *clitest.Fixture, flags []string) {
	t.Helper()
	first, second := clitest.New(t), clitest.New(t)
	flags = append([]string{}, first.Flags...)
	flags[1] += "," + second.Address
	return first, flags
}

func lines(text string) (out []string) {
	for line := range strings.Lines(text) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return out
}

func TestSourcesAreListed(t *testing.T) {
	f := clitest.New(t)
	f.SetSources(&configv1.SourceStatus{Name: "memory", State: configv1.SourceState_SOURCE_STATE_SYNCED, Objects: 3}, withheld())
	out, code, err := f.Run("", "sources")
	got := lines(out)
	if err != nil || code != 0 || len(got) != 3 || got[0] != "NAME STATE AGE OBJECTS PROBLEM REMEDY" || got[1] != "memory SYNCED - 3 - -" ||
		!strings.HasPrefix(got[2], "kubernetes/east HELD 1") || !strings.HasSuffix(got[2], "s 40 lacks much bring it back") {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	out, _, err = f.Run("", "sources", "-o", "json")
	var all []struct {
		Replica string
		Source  struct{ Name, State string }
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err != nil || len(all) != 2 || all[1].Replica != f.Address || all[1].Source.State != "SOURCE_STATE_HELD" {
		t.Errorf("%v %+v", err, all)
	}
}

// TestEveryReplicaIsAsked: what one says is shown with its name, and that another one does not answer.
func TestEveryReplicaIsAsked(t *testing.T) {
	f, flags := two(t)
	f.SetSources(withheld())
	out, code, err := clitest.Run("", append([]string{"sources"}, flags...)...)
	got := lines(out)
	if code != process.ExitFailure || err == nil || len(got) != 2 || !strings.HasPrefix(got[0], "REPLICA NAME STATE") ||
		!strings.HasPrefix(got[1], f.Address+" kubernetes/east HELD") {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	out, code, err = clitest.Run("", append([]string{"sources", "accept", "kubernetes/east"}, flags...)...)
	if code != process.ExitFailure || err == nil || out != f.Address+": 30 objects of kubernetes/east are removed\n" ||
		!strings.Contains(err.Error(), strings.Split(flags[1], ",")[1]) {
		t.Errorf("%d %v\n%s", code, err, out)
	}
}

func TestSourcesAccept(t *testing.T) {
	f := clitest.New(t)
	f.SetSources(withheld())
	accept := func(name string) (string, int, error) { return f.Run("", "sources", "accept", name) }
	removed := f.Address + ": 30 objects of kubernetes/east are removed\n"
	if out, code, err := accept("kubernetes/east"); err != nil || code != 0 || out != removed {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	nothing := f.Address + ": nothing of kubernetes/east is withheld\n"
	if out, code, err := accept("kubernetes/east"); code != process.ExitFailure || out != nothing ||
		!strings.Contains(err.Error(), "`fairlead sources` shows") {
		t.Errorf("again: %d %v\n%s", code, err, out)
	}
	if out, code, err := accept("east"); code != process.ExitFailure || !strings.Contains(err.Error(), `there is no source "east"`) {
		t.Errorf("wrong name: %d %v\n%s", code, err, out)
	}
	if _, code, _ := f.Run("", "sources", "accept"); code != process.ExitUsage {
		t.Errorf("without a name: %d", code)
	}
}
