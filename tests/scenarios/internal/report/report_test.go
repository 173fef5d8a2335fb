package report

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	r := &Report{}
	r.Add(Result{Topology: "small", Name: "b", Took: time.Second, Note: "has a note"})
	r.Add(Result{Topology: "big", Name: "c", Took: 2 * time.Second, Failure: "step 1: <no> answer\nseen: nothing"})
	r.Add(Result{Topology: "big", Name: "a", Skipped: "no IPv6"})
	file := filepath.Join(t.TempDir(), "junit.xml")
	if err := r.WriteJUnit(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got testSuites
	if err := xml.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Suites) != 2 || got.Suites[0].Name != "big" || got.Suites[0].Tests != 2 || got.Suites[0].Failures != 1 ||
		got.Suites[0].Skipped != 1 || got.Suites[0].Seconds != "2.000" {
		t.Errorf("suites %+v", got.Suites)
	}
	if c := got.Suites[0].Cases[1]; c.Name != "c" || c.Failure == nil || c.Failure.Message != "step 1: <no> answer" ||
		!strings.Contains(c.Failure.Text, "seen: nothing") {
		t.Errorf("case %+v", c)
	}
	table := r.Table()
	for _, want := range []string{"FAILED   big/c: step 1: <no> answer\n", "SKIPPED  big/a: no IPv6\n", "NOTE     small/b: has a note\n",
		"all                                1       1        1       3.0     1.50\n"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}
