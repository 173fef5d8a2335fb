package clustercheck

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/services/installer/internal/kube"
)

// probeWithin bounds the questions about one credential.
const probeWithin = 10 * time.Second

// remote is an entry of a remote Secret.
type remote struct {
	secret, id string
	created    time.Time
	kubeconfig []byte

	// Of probe: where it leads, whose cluster that is (the UID of kube-system), which rights the account lacks, and why
	// it could not be used. elsewhere is true if the address could not be reached from here, and the credential was
	// tried at the address of the other cluster's context.
	server    string
	uid       string
	lacks     []string
	err       error
	elsewhere error
}

// entriesOf lists the entries by age: the first of an id counts.
func entriesOf(secrets []corev1.Secret) []*remote {
	var out []*remote
	for i := range secrets {
		s := &secrets[i]
		for id, kubeconfig := range s.Data {
			out = append(out, &remote{secret: s.Namespace + "/" + s.Name, id: id, created: s.CreationTimestamp.Time, kubeconfig: kubeconfig})
		}
	}
	slices.SortFunc(out, func(a, b *remote) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.secret+" "+a.id, b.secret+" "+b.id))
	})
	return out
}

// probeSecrets tries the credentials of a cluster's remote Secrets.
func (f *Facts) probeSecrets(ctx context.Context, all []*Facts) {
	for _, e := range f.secrets[:min(len(f.secrets), maxSecrets)] {
		e.probe(ctx, all)
	}
}

// probe uses the credential as config-watcher does: no program runs, no file is read.
func (e *remote) probe(ctx context.Context, all []*Facts) {
	cfg, err := connection(e.kubeconfig)
	if err != nil {
		e.err = err
		return
	}
	e.server = cfg.Host
	ctx, cancel := context.WithTimeout(ctx, 2*probeWithin)
	defer cancel()
	err = e.ask(ctx, cfg)
	var answer apierrors.APIStatus
	if err == nil || errors.As(err, &answer) {
		e.err = err
		return
	}
	// The address may be one for clusters alone. A credential is shown to nobody but the cluster whose CA its
	// kubeconfig names.
	for _, f := range all {
		at := rest.CopyConfig(f.Config)
		if rest.LoadTLSFiles(at) != nil || !sameCA(at.CAData, cfg.CAData) {
			continue
		}
		e.elsewhere = err
		there := &rest.Config{Host: at.Host, BearerToken: cfg.BearerToken, Timeout: probeWithin, TLSClientConfig: at.TLSClientConfig}
		there.CertData, there.KeyData, there.CertFile, there.KeyFile = cfg.CertData, cfg.KeyData, "", ""
		e.err = e.ask(ctx, there)
		return
	}
	e.err = err
}

// ask asks an API server who it is, and what the credential may read there.
func (e *remote) ask(ctx context.Context, cfg *rest.Config) error {
	api, err := kube.NewAPI(cfg)
	if err != nil {
		return err
	}
	system, err := api.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	switch {
	case err == nil:
		e.uid = string(system.UID)
	case !apierrors.IsForbidden(err):
		return err
	}
	e.lacks = nil
	for _, r := range []struct{ group, resource string }{
		{"", "services"}, {"", "pods"}, {"", "nodes"}, {"", "namespaces"}, {"discovery.k8s.io", "endpointslices"},
	} {
		for _, verb := range []string{"list", "watch"} {
			review, err := api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authv1.SelfSubjectAccessReview{
				Spec: authv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authv1.ResourceAttributes{Verb: verb, Group: r.group, Resource: r.resource},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !review.Status.Allowed {
				e.lacks = append(e.lacks, verb+" "+r.resource)
			}
		}
	}
	return nil
}

// connection reads what stands in a kubeconfig itself.
func connection(raw []byte) (*rest.Config, error) {
	file, err := clientcmd.Load(raw)
	if err != nil {
		return nil, errors.New("is no kubeconfig") // the error may quote the content
	}
	at := file.Contexts[file.CurrentContext]
	if at == nil || file.Clusters[at.Cluster] == nil || file.AuthInfos[at.AuthInfo] == nil {
		return nil, errors.New("its current context names no cluster and user")
	}
	cluster, user := file.Clusters[at.Cluster], file.AuthInfos[at.AuthInfo]
	switch {
	case user.Exec != nil || user.AuthProvider != nil:
		return nil, errors.New("names a program or an auth provider, and control planes run none")
	case user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "" || cluster.CertificateAuthority != "":
		return nil, errors.New("names a file, and control planes read none")
	case cluster.InsecureSkipTLSVerify || !strings.HasPrefix(cluster.Server, "https://"):
		return nil, errors.New("does not authenticate the API server")
	case cluster.ProxyURL != "":
		return nil, errors.New("names a proxy, and control planes use none")
	case user.Token == "" && len(user.ClientCertificateData) == 0:
		return nil, errors.New("has no credential")
	}
	return &rest.Config{Host: cluster.Server, BearerToken: user.Token, Timeout: probeWithin, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{ServerName: cluster.TLSServerName, CAData: cluster.CertificateAuthorityData,
			CertData: user.ClientCertificateData, KeyData: user.ClientKeyData}}, nil
}

// sameCA reports whether two texts have a certificate in common.
func sameCA(a, b []byte) bool {
	for _, x := range certificates(a) {
		for _, y := range certificates(b) {
			if x.Equal(y) {
				return true
			}
		}
	}
	return false
}

// nameByCredentials gives clusters without a control plane the id by which another one reads them.
func nameByCredentials(all []*Facts) {
	for _, f := range all {
		for _, reader := range all {
			for _, e := range reader.secrets {
				if f.id == "" && f.uid != "" && e.uid == f.uid {
					f.id = e.id
				}
			}
		}
	}
}

func unmarshal(raw []byte, into any) error {
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(into); err != nil {
		return fmt.Errorf("the API server's answer: %w", err)
	}
	return nil
}
