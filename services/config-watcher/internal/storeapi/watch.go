package storeapi

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// Watch implements ConfigStoreService.
func (s *Server) Watch(req *configv1.ConfigStoreServiceWatchRequest,
	stream grpc.ServerStreamingServer[configv1.ConfigStoreServiceWatchResponse]) error {
	ctx := stream.Context()
	s.loaded(ctx)
	others, banned := s.access.Changed(), s.access.BansChanged()
	readable, err := s.readable(ctx, access.Watch, req.Kind, req.Namespace)
	if err != nil {
		return err
	}
	items, w, err := s.store.Watch(req.Kind, req.Namespace)
	if err != nil {
		return statusOf(err)
	}
	defer w.Stop()
	for _, it := range items {
		if !readable(it.Key) {
			continue
		}
		if err := stream.Send(&configv1.ConfigStoreServiceWatchResponse{Type: configv1.EventType_EVENT_TYPE_ADDED,
			Object: s.objectProto(it)}); err != nil {
			return err
		}
	}
	if err := stream.Send(&configv1.ConfigStoreServiceWatchResponse{Type: configv1.EventType_EVENT_TYPE_SYNCED}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stop:
			return status.Error(codes.Unavailable, "config-watcher is stopping")
		case <-others:
			return status.Error(codes.Aborted, "roles have changed; watch again")
		case <-banned:
			banned = s.access.BansChanged()
			if _, err := s.readable(ctx, access.Watch, req.Kind, req.Namespace); err != nil {
				return err
			}
			continue
		case <-w.Ready():
		}
		events, err := w.Take()
		if err != nil {
			return statusOf(err)
		}
		for _, e := range events {
			if !readable(e.Item.Key) {
				continue
			}
			if err := stream.Send(&configv1.ConfigStoreServiceWatchResponse{Type: eventTypes[e.Type], Object: s.objectProto(e.Item)}); err != nil {
				return err
			}
		}
	}
}

var eventTypes = map[memory.EventType]configv1.EventType{
	memory.Added:    configv1.EventType_EVENT_TYPE_ADDED,
	memory.Modified: configv1.EventType_EVENT_TYPE_MODIFIED,
	memory.Deleted:  configv1.EventType_EVENT_TYPE_DELETED,
}
