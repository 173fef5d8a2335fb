// Package commands tests commands that work with a cluster, and install nothing, on a real Kubernetes API server, some
// beside istioctl.
package commands

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
