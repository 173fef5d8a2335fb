// Package emptykube is a Kubernetes API server without objects and rights, for an istiod that does not start without
// one. Start serves it, and whoever has started it calls Server.Close.
package emptykube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
)

// Server is the API server.
type Server struct {
	http *httptest.Server
	end  chan struct{}
}

// Start serves on loopback.
func Start() *Server {
	s := &Server{end: make(chan struct{})}
	s.http = httptest.NewServer(s)
	return s
}

// Close ends the server and the watches of its clients.
func (s *Server) Close() {
	close(s.end)
	s.http.Close()
}

// Kubeconfig is the text of a file by which clients find the server.
func (s *Server) Kubeconfig() []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":`+
		`{"server":%q}}],"users":[{"name":"c","user":{}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}]}`, s.http.URL)
}

// ServeHTTP answers lists and watches, in which there is nothing.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-s.end:
		}
	case isList(r.URL.Path):
		kind, version := kindOf(r)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{},
		})
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

// isList reports whether a path is that of all objects of a resource, of a namespace or of all.
func isList(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) > 2 && parts[0] == "api" {
		parts = parts[2:]
	} else if len(parts) > 3 && parts[0] == "apis" {
		parts = parts[3:]
	}
	return len(parts) == 1 || len(parts) == 3 && parts[0] == "namespaces"
}

// kindOf is the kind of a list: clients that ask for metadata alone say so.
func kindOf(r *http.Request) (kind, version string) {
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
		return "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version = parts[1]
	if parts[0] == "apis" {
		version = parts[1] + "/" + parts[2]
	}
	return map[string]string{
		"namespaces": "NamespaceList", "services": "ServiceList", "pods": "PodList", "nodes": "NodeList", "endpointslices": "EndpointSliceList",
		"configmaps": "ConfigMapList", "secrets": "SecretList", "serviceaccounts": "ServiceAccountList", "ingresses": "IngressList",
		"ingressclasses": "IngressClassList", "customresourcedefinitions": "CustomResourceDefinitionList",
		"mutatingwebhookconfigurations": "MutatingWebhookConfigurationList", "deployments": "DeploymentList",
		"validatingwebhookconfigurations": "ValidatingWebhookConfigurationList",
	}[parts[len(parts)-1]], version
}
