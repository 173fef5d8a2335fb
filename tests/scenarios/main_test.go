// Package scenarios runs traffic scenarios on real Envoys: see README.md for their format.
//
//	go test ./scenarios -dir DIR               every scenario of a directory
//	go test ./scenarios -dir DIR -run NAME -v  those whose names match, each step with its time
package scenarios

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit/userns"
)

var (
	dirs     = flag.String("dir", "examples", "directories with scenarios, comma separated")
	out      = flag.String("out", "", "directory for the report (junit.xml, summary.txt), and for logs and configuration dumps of what failed")
	onDemand = flag.Bool("on-demand", false, "sidecars hold only what they call (docs/guide/on-demand.md)")
	share    = flag.Int("share", 1, "run one scenario in this many, which -share-by decides")
	shareBy  = flag.String("share-by", "", "text that decides which scenarios are a -share, such as a commit's hash")
	// only is a regular expression for names of scenarios.
	only string
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A pattern that no test of this package is meant by is one for scenarios.
	if f := flag.Lookup("test.run"); f.Value.String() != "" && f.Value.String() != "^$" && !strings.Contains(f.Value.String(), "Test") {
		only = f.Value.String()
		if err := f.Value.Set("^TestScenarios$"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	userns.Main(m)
}
