package configapitest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// SetSources sets what ListSources answers.
func (s *Server) SetSources(sources ...*configv1.SourceStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources = sources
}

// ListSources implements ConfigStoreService.
func (s *Server) ListSources(context.Context, *configv1.ListSourcesRequest) (*configv1.ListSourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &configv1.ListSourcesResponse{Sources: s.sources}, nil
}

// AcceptSource implements ConfigStoreService: what a source withholds is gone then.
func (s *Server) AcceptSource(_ context.Context, r *configv1.AcceptSourceRequest) (*configv1.AcceptSourceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, source := range s.sources {
		if source.GetName() == r.GetName() {
			res := &configv1.AcceptSourceResponse{}
			for _, w := range source.GetWithheld() {
				res.Removed += w.GetObjects()
			}
			source.Withheld = nil
			return res, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no source %q", r.GetName())
}

// SetPreview sets what PreviewRegistry answers, and seen what is told its requests.
func (s *Server) SetPreview(answer *configv1.PreviewRegistryResponse, seen func(context.Context, *configv1.PreviewRegistryRequest) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.preview, s.previewed = answer, seen
}

// PreviewRegistry implements ConfigStoreService.
func (s *Server) PreviewRegistry(ctx context.Context, r *configv1.PreviewRegistryRequest) (*configv1.PreviewRegistryResponse, error) {
	s.mu.Lock()
	answer, seen := s.preview, s.previewed
	s.mu.Unlock()
	return answer, seen(ctx, r)
}
