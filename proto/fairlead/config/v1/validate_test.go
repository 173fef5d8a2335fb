package configv1

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	long := strings.Repeat("x", MaxNameBytes+1)
	key := &ObjectKey{Kind: "VirtualService", Namespace: "default", Name: "reviews"}
	cases := map[string]struct {
		message interface{ Validate() error }
		want    string
	}{
		"watch request without message": {&WatchRequest{}, "message: is not set"},
		"hello without instance":        {&WatchRequest{Message: &WatchRequest_Hello{Hello: &WatchHello{}}}, "subscriber.instance: is empty"},
		"hello": {&WatchRequest{Message: &WatchRequest_Hello{Hello: &WatchHello{Subscriber: &Subscriber{Instance: "a"}}}},
			""},
		"held with a hash missing": {&WatchRequest{Message: &WatchRequest_Held{Held: &Held{Kind: "Service", Keys: []string{"a/b"}}}},
			"send 16 bytes"},
		"held": {
			&WatchRequest{Message: &WatchRequest_Held{Held: &Held{Kind: "Service", Keys: []string{"a/b"}, Hashes: make([]byte, 16)}}}, ""},
		"ack":                          {&WatchRequest{Message: &WatchRequest_Ack{Ack: &WatchAck{Sequence: 1}}}, ""},
		"report of a proxy without id": {&ReportRequest{Proxies: []*ProxyStatus{{}}}, "proxies[0].node_id: is empty"},
		"get without key":              {&GetRequest{}, "key.kind: is empty"},
		"get":                          {&GetRequest{Key: key}, ""},
		"delete with a long name":      {&DeleteRequest{Key: &ObjectKey{Kind: "Service", Name: long}}, "key.name: has 513 bytes"},
		"create without manifest":      {&CreateRequest{}, "manifest: is empty"},
		"update of a huge manifest":    {&UpdateRequest{Manifest: make([]byte, MaxManifestBytes+1)}, "split it"},
		"status":                       {&UpdateStatusRequest{Key: key, Status: []byte("{}")}, ""},
		"patch without patch":          {&PatchRequest{Key: key}, "patch: is empty"},
		"too many documents":           {&ApplyRequest{Documents: make([]*Document, MaxDocuments+1)}, "at most 1024"},
		"empty document":               {&ApplyRequest{Documents: []*Document{{Name: "a.yaml"}}}, "documents[0].content (a.yaml): is empty"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := c.message.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
