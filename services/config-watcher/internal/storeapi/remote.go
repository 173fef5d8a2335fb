package storeapi

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/remote"
)

var remoteStates = map[remote.State]configv1.RemoteClusterState{
	remote.Syncing: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_SYNCING,
	remote.Synced:  configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_SYNCED,
	remote.Timeout: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_TIMEOUT,
	remote.Away:    configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_AWAY,
	remote.Refused: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_REFUSED,
	remote.Ignored: configv1.RemoteClusterState_REMOTE_CLUSTER_STATE_IGNORED,
}

// ListRemoteClusters implements ConfigStoreService. Callers who may not list everything learn ids and states alone.
func (s *Server) ListRemoteClusters(ctx context.Context, _ *configv1.ListRemoteClustersRequest) (*configv1.ListRemoteClustersResponse,
	error) {
	readable, err := s.readable(ctx, access.List, "", "")
	if err != nil {
		return nil, err
	}
	out := &configv1.ListRemoteClustersResponse{Cluster: s.cluster}
	if s.remotes == nil {
		return out, nil
	}
	everything := readable(object.Key{})
	out.Unread = errorText(s.remotes.Unread(), "their Secrets cannot be read", everything)
	for _, row := range s.remotes.List() {
		c := &configv1.RemoteCluster{Id: row.ID, State: remoteStates[row.State], Objects: uint32(row.Objects)}
		if !row.SyncedAt.IsZero() {
			c.SyncedAt = timestamppb.New(row.SyncedAt)
		}
		if everything {
			c.Secret, c.Server, c.Message = row.Secret, row.Server, row.Message
		}
		out.Clusters = append(out.Clusters, c)
	}
	return out, nil
}
