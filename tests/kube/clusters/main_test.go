// Package clusters tests tokens of remote clusters: ca and xds-server as processes in a mesh of one cluster, and
// workloads with tokens that the API servers of others have signed. It begins with what these must not get.
package clusters

import (
	"os"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }
