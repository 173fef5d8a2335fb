// Package gateways tests fairlead-gateways with a real Kubernetes API server, with the rights and the policy of an
// installation, and compares what it makes with what Istio's own controller makes of the same Gateways.
package gateways

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
