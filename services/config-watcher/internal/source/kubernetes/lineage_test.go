package kubernetes

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestOtherDataIsNoticed: an API server that is another one, or older than before, is listed again; every kind, once.
func TestOtherDataIsNoticed(t *testing.T) {
	for name, tc := range map[string]struct {
		uid, version string
		code         int
		relists      bool
	}{
		"later": {uid: "u", version: "9"}, "same": {uid: "u", version: "5"}, "older": {uid: "u", version: "4", relists: true},
		"another cluster": {uid: "v", version: "9", relists: true}, "without kube-system": {version: "9", relists: true},
		"no answer": {code: http.StatusForbidden}, "version is no number": {uid: "u", version: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
				ListMeta: metav1.ListMeta{ResourceVersion: tc.version}}
			if tc.uid != "" {
				list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: kubeSystem, UID: types.UID(tc.uid)}})
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/namespaces" || r.URL.Query().Get("fieldSelector") != "metadata.name="+kubeSystem {
					t.Errorf("asks for %s", r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				if tc.code != 0 {
					w.WriteHeader(tc.code)
				}
				_ = json.NewEncoder(w).Encode(list)
			}))
			defer server.Close()
			f := newFixture(t, nil)
			told := 0
			f.cfg.OtherData = func() { told++ }
			api, err := newClients(&rest.Config{Host: server.URL})
			must(t, err)
			f.api.Store(api)
			namespaces, services := f.watcher("", "Namespace"), f.watcher("", "Service")
			must(t, namespaces.replace(namespaces.namespaces("u", kubeSystem), "5"))
			must(t, services.replace(nil, "8")) // of an etcd of its own
			if answered := f.checkData(t.Context()); answered != (tc.code == 0) {
				t.Errorf("answered: %v", answered)
			}
			if namespaces.mustList() != tc.relists || services.mustList() != tc.relists || (told == 1) != tc.relists {
				t.Errorf("lists again: %v, %v, told %d times; want %v", namespaces.mustList(), services.mustList(), told, tc.relists)
			}
		})
	}
}
