// Package ca tests the ca's replicas, as processes of their own, with a real Kubernetes API server: killed in turn
// under load, and without the API server. It needs root or user namespaces.
package ca

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
