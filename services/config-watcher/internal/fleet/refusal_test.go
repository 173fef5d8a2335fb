package fleet

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestRefusalsAreListedForAWhile(t *testing.T) {
	clk := testkit.NewClock(time.Unix(1000, 0))
	table := NewTable(clk)
	r := table.Report("x0")
	refusal := &configv1.Refusal{NodeId: "greedy", Identity: "spiffe://cluster.local/ns/apps/sa/web", Budget: "names",
		At: timestamppb.New(clk.Now())}
	r.Apply(&configv1.ReportRequest{Refusals: &configv1.Refusals{Refusals: []*configv1.Refusal{refusal}}}, true)
	r.Apply(report(1, 5, "a"), false) // a report that says nothing of refusals leaves them
	for namespace, want := range map[string]int{"": 1, "apps": 1, "other": 0} {
		got := table.Refusals(namespace)
		if len(got) != want || want > 0 && got[0].GetXdsServer() != "x0" {
			t.Errorf("refusals of %q: %v", namespace, got)
		}
	}
	if got := verdict(table, 5); got != "acked 1 pending []" {
		t.Errorf("a refused proxy counts: %s", got)
	}
	clk.Advance(refusalLife)
	if got := table.Refusals(""); len(got) > 0 {
		t.Errorf("refusals ten minutes later: %v", got)
	}
}
