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
	dirs = flag.String("dir", "examples", "directories with scenarios, comma separated")
	out  = flag.String("out", "",
		"directory for the report (junit.xml, summary.txt), and for logs and configuration dumps of what failed")
	onDemand   = flag.Bool("on-demand", false, "sidecars hold only what they call (docs/guide/on-demand.md)")
	tenants    = flag.Bool("tenants", false, "config-watcher separates namespaces (docs/guide/multi-tenant.md); for -dir tenants")
	redirected = flag.String("redirect", "", "what redirects connections: a --redirect-backend of node-agent init, such as iptables")
	source     = flag.String("source", sourceStore, "where config-watcher reads the objects: "+sourceStore+" (its own) or "+sourceKubernetes+
		" (an API server, with etcd)")
	// certificates says where agents have theirs from.
	certificates = flag.String("certificates", fromCA, "where agents have their certificates from: "+fromCA+", which they ask, or "+fromFiles+
		" that are mounted")
	share   = flag.Int("share", 1, "run one scenario in this many, which -share-by decides")
	shareBy = flag.String("share-by", "", "text that decides which scenarios are a -share, such as a commit's hash")
	cluster = flag.Bool("cluster", false,
		"workloads are Pods of the cluster that `cluster exec` has set the environment for, in which Fairlead is installed for that; scenarios "+
			"that need machines are left out")
	sample = flag.Int("sample", 0, "with -cluster, run so many of the scenarios that can, which -share-by decides; 0: all")
	// only is a regular expression for names of scenarios.
	only string
)

// Values of -source.
const (
	sourceStore      = "store"
	sourceKubernetes = "kubernetes"
)

// Values of -certificates.
const (
	fromCA    = "ca"
	fromFiles = "files"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *source != sourceStore && *source != sourceKubernetes {
		fmt.Fprintf(os.Stderr, "-source %s: want %s or %s\n", *source, sourceStore, sourceKubernetes)
		os.Exit(2)
	}
	if *certificates != fromCA && *certificates != fromFiles {
		fmt.Fprintf(os.Stderr, "-certificates %s: want %s or %s\n", *certificates, fromCA, fromFiles)
		os.Exit(2)
	}
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
