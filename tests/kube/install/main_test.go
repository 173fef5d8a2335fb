// Package install tests the commands that install with a real Kubernetes API server: what they write, and what they
// say. There are no nodes: Pods and the statuses of workloads are written by the tests.
package install

import (
	"flag"
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests wait more than they compute.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	os.Exit(kubeapi.Main(m))
}
