package serve

import (
	"context"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// deltaResponse and sotwResponse carry a finished message through go-control-plane's loops.
type deltaResponse struct {
	request *cache.DeltaRequest
	message *discovery.DeltaDiscoveryResponse
	ctx     context.Context
}

func (r *deltaResponse) GetDeltaDiscoveryResponse() (*discovery.DeltaDiscoveryResponse, error) {
	return r.message, nil
}

func (r *deltaResponse) GetDeltaRequest() *discovery.DeltaDiscoveryRequest { return r.request }

func (r *deltaResponse) GetSystemVersion() (string, error) { return r.GetResponseVersion(), nil }

func (r *deltaResponse) GetResponseVersion() string { return r.message.GetSystemVersionInfo() }

func (r *deltaResponse) GetContext() context.Context { return r.ctx }

// This package tracks what the client holds by itself.
func (r *deltaResponse) GetNextVersionMap() map[string]string { return nil }

func (r *deltaResponse) GetReturnedResources() map[string]string { return nil }

type sotwResponse struct {
	request *cache.Request
	message *discovery.DiscoveryResponse
	ctx     context.Context
}

func (r *sotwResponse) GetDiscoveryResponse() (*discovery.DiscoveryResponse, error) {
	return r.message, nil
}

func (r *sotwResponse) GetRequest() *discovery.DiscoveryRequest { return r.request }

func (r *sotwResponse) GetVersion() (string, error) { return r.GetResponseVersion(), nil }

func (r *sotwResponse) GetResponseVersion() string { return r.message.GetVersionInfo() }

func (r *sotwResponse) GetContext() context.Context { return r.ctx }

func (r *sotwResponse) GetReturnedResources() map[string]string { return nil }

var (
	_ cache.DeltaResponse = (*deltaResponse)(nil)
	_ cache.Response      = (*sotwResponse)(nil)
	_ cache.ConfigWatcher = (*stream)(nil)
)
