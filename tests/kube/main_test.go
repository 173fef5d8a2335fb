// Package kube tests with a real Kubernetes API server, without nodes.
package kube

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
