package mesh

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/proto/fairlead/caapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestRemoteClustersAreShownWithStateAndRemedy(t *testing.T) {
	out := &strings.Builder{}
	err := printRemoteClusters(out, &configv1.ListRemoteClustersResponse{
		Cluster: "west", Unread: "the Secrets cannot be read",
		Clusters: []*configv1.RemoteCluster{
			{Id: "east", Secret: "istio-system/s", State: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_AWAY, Objects: 7,
				Server:   "https://203.0.113.7",
				SyncedAt: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)), Message: "bring it back"},
			{Id: "south", State: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_TIMEOUT},
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"CLUSTER SECRET STATE LAST SYNCED OBJECTS SERVER MESSAGE", "west - own - - - -",
		"east istio-system/s AWAY 2030-01-02T03:04:05Z 7 https://203.0.113.7 bring it back",
		"south - TIMEOUT never 0 - -", "", "the Secrets cannot be read",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}

func TestRemoteClustersShowWhoseTokensCount(t *testing.T) {
	out := &strings.Builder{}
	err := printRemoteClusters(out, &configv1.ListRemoteClustersResponse{
		Cluster: "west", Clusters: []*configv1.RemoteCluster{
			{Id: "east", State: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_SYNCED}, {Id: "mid"},
		},
	}, &caapi.RemoteClusters{Clusters: []caapi.RemoteCluster{
		{Cluster: "east", State: caapi.ClusterTrusted},
		{Cluster: "far", State: caapi.ClusterRefused, ConfigMap: "istio-system/far", Problem: "field issuer: is empty"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"CLUSTER SECRET STATE LAST SYNCED OBJECTS SERVER TOKENS MESSAGE", "west - own - - - trusted -",
		"east - SYNCED never 0 - trusted -", "mid - UNSPECIFIED never 0 - no -", "far - - - - - refused -", "",
		"ConfigMap istio-system/far: field issuer: is empty",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}
