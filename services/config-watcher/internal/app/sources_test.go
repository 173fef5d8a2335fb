package app

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/source"
)

// withholder is a source that withholds objects.
type withholder struct {
	cluster
	objects atomic.Int32
}

func (w *withholder) Status() source.Status {
	st := w.cluster.Status()
	if n := int(w.objects.Load()); n > 0 {
		since := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		st.Withheld = []source.Withheld{{What: "Service", Objects: n, InForce: 20, Since: since, Until: since.Add(30 * time.Second)}}
	}
	return st
}

// Accept implements source.Withholder.
func (w *withholder) Accept() int { return int(w.objects.Swap(0)) }

// TestWhatIsWithheldIsShownAndAccepted: by an administrator alone, once, with a line in the audit log.
func TestWhatIsWithheldIsShownAndAccepted(t *testing.T) {
	held := &withholder{}
	held.synced.Store(true)
	held.objects.Store(15)
	r := startWithRoles(t, func(d *deps) { d.Sources = append(d.Sources, held) })
	client, who := configv1.NewConfigStoreServiceClient(r.dial("")), configv1.NewAccessServiceClient(r.dial(""))

	res, err := client.ListSources(r.as("ops/second"), &configv1.ListSourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(res.GetSources(), func(s *configv1.SourceStatus) bool { return s.GetName() == "cluster" })
	if i < 0 {
		t.Fatalf("the source is not told: %v", res)
	}
	if last := res.GetSources()[i]; last.GetState() != configv1.SourceState_SOURCE_STATE_HELD || last.GetWithheld()[0].GetObjects() != 15 ||
		!strings.Contains(last.GetProblem(), "lacks 15 of 20 Service: they stay until a second one lacks them too, not before 2030-01-01T00:") ||
		!strings.Contains(last.GetRemedy(), "`fairlead sources accept cluster`") || last.GetStaleSince() == nil {
		t.Errorf("%v", last)
	}
	if first := res.GetSources()[0]; first.GetState() != configv1.SourceState_SOURCE_STATE_SYNCED || first.GetProblem() != "" {
		t.Errorf("%v", first)
	}
	if body := r.body(t, "/readyz/sources", ""); !strings.Contains(body, `"what": "Service"`) || !strings.Contains(body, `"objects": 15`) {
		t.Errorf("%s", body)
	}
	if body := r.body(t, "/metrics", ""); !strings.Contains(body, `fairlead_config_watcher_source_withheld{source="cluster"} 15`) {
		t.Error("no metric tells")
	}

	accept := func(account, name string) (uint32, error) {
		res, err := client.AcceptSource(r.as(account), &configv1.AcceptSourceRequest{Name: name})
		return res.GetRemoved(), err
	}
	for account, want := range map[string]codes.Code{"ops/editor": codes.PermissionDenied, "ops/everywhere": codes.PermissionDenied} {
		if _, err := accept(account, "cluster"); status.Code(err) != want {
			t.Errorf("%s: %v", account, err)
		}
	}
	if _, err := accept("ops/second", "clusters"); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "those are memory, ") {
		t.Errorf("wrong name: %v", err)
	}
	if n, err := accept("ops/second", "memory"); n != 0 || err != nil {
		t.Errorf("a source that withholds nothing: %d, %v", n, err)
	}
	if n, err := accept("ops/second", "cluster"); n != 15 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := accept("ops/second", "cluster"); n != 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	log, err := who.ListAudit(r.as("ops/second"), &configv1.ListAuditRequest{Last: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range log.Lines {
		var e audit.Entry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if e.Call == "AcceptSource" {
			o := e.Objects[0]
			got = append(got, strings.Join([]string{e.Identity[strings.LastIndexByte(e.Identity, '/')+1:], e.Result, o.Verb, o.Kind, o.Name}, " "))
		}
	}
	count := map[string]int{}
	for _, line := range got {
		count[line]++
	}
	for _, want := range []string{"editor refused accept Source cluster", "everywhere refused accept Source cluster",
		"second refused accept Source clusters", "second accepted accept Source cluster"} {
		if count[want] != 1 || len(got) != 4 {
			t.Errorf("the audit log has %q, want %q", got, want)
		}
	}
}
