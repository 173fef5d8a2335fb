// Package injector tests fairlead-injector with a real Kubernetes API server, which calls it as in a cluster.
package injector

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
