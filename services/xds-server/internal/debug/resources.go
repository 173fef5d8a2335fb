package debug

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/proto/fairlead/contract"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

// kinds are the short names of types, as in `fairlead proxy-config`, in the order in which operators look at them.
var kinds = []struct{ name, url string }{
	{"virtualhosts", resource.VirtualHostType}, {"clusters", resource.ClusterType}, {"endpoints", resource.EndpointType},
	{"listeners", resource.ListenerType}, {"routes", resource.RouteType}, {"secrets", resource.SecretType},
	{"extensions", resource.ExtensionConfigType}, {"nametables", ndsv1.NameTableType}, {"bootstraps", bootstrap.TypeURL},
	{"proxyconfigs", contract.ProxyConfigType}, {"signedbundles", contract.SignedBundleType},
}

func typeNames() []string {
	list := make([]string, 0, len(kinds))
	for _, k := range kinds {
		list = append(list, k.name)
	}
	return list
}

// typeName is the short name of a type, or its URL if it has none.
func typeName(url string) string {
	for _, k := range kinds {
		if k.url == url {
			return k.name
		}
	}
	return url
}

// rank is the position of a type in kinds.
func rank(url string) int {
	for i, k := range kinds {
		if k.url == url {
			return i
		}
	}
	return len(kinds)
}

// typeURL reads a type: a short name, in singular or plural, a type URL, or the message's name alone. "" stays "".
func typeURL(text string, planned []string) (string, error) {
	if text == "" {
		return "", nil
	}
	lower := strings.ToLower(text)
	for _, k := range kinds {
		if lower == k.name || lower+"s" == k.name {
			return k.url, nil
		}
	}
	all := slices.Clone(planned)
	for _, k := range kinds {
		all = append(all, k.url)
	}
	for _, url := range all {
		if url == text || strings.HasSuffix(url, "/"+text) || strings.HasSuffix(url, "."+text) {
			return url, nil
		}
	}
	return "", fmt.Errorf("no type %q; choose one of %s, or give a type URL", text, strings.Join(typeNames(), ", "))
}

// servedResource is one resource as a proxy is sent it.
type servedResource struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

// shown is a resource without its secrets.
func shown(m *anypb.Any) proto.Message {
	if m.GetTypeUrl() != resource.SecretType {
		return m
	}
	s, out := &tlsv3.Secret{}, &tlsv3.Secret{}
	if err := m.UnmarshalTo(s); err == nil {
		out.Name = s.GetName()
		if c := s.GetTlsCertificate(); c != nil {
			// The chain is public: it is shown to every client that connects.
			out.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: c.GetCertificateChain(),
				PrivateKey:       &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "(redacted)"}},
			}}
		}
		if v := s.GetValidationContext(); v != nil {
			out.Type = &tlsv3.Secret_ValidationContext{ValidationContext: v}
		}
	}
	packed, err := anypb.New(out)
	if err != nil {
		return &anypb.Any{TypeUrl: m.GetTypeUrl()}
	}
	return packed
}

func (d *pages) resources(r *http.Request) (any, error) {
	q := r.URL.Query()
	_, c, err := d.proxy(q.Get("proxy"))
	if err != nil {
		return nil, err
	}
	snapshot := c.Snapshot()
	wanted, err := typeURL(q.Get("type"), snapshot.URLs())
	if err != nil {
		return nil, err
	}
	// The config dump of Envoy spells fields as their proto files do.
	marshal := protojson.MarshalOptions{UseProtoNames: q.Get("spelling") == "proto"}
	found := map[string][]servedResource{}
	for _, url := range snapshot.URLs() {
		if wanted != "" && wanted != url {
			continue
		}
		list := []servedResource{}
		snapshot.Type(url).Scan(func(name string, item plan.Item) bool {
			if item.Blob == nil || q.Get("name") != "" && name != q.Get("name") {
				return true
			}
			var raw []byte
			if raw, err = marshal.Marshal(shown(item.Blob.Resource.GetResource())); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				return false
			}
			list = append(list, servedResource{name, item.Blob.Version(), raw})
			return true
		})
		if err != nil {
			return nil, err
		}
		found[url] = list
	}
	return found, nil
}
