// Command external-signer signs for Fairlead's ca with its own key: a server of fairlead.ca.v1.SignerService.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

type server struct {
	cav1.UnimplementedSignerServiceServer
	ca tls.Certificate // the certificate that signs leaves, those between, and last the root
}

func (s *server) GetRoots(context.Context, *cav1.GetRootsRequest) (*cav1.GetRootsResponse, error) {
	return &cav1.GetRootsResponse{RootCertificates: encode(s.ca.Certificate[len(s.ca.Certificate)-1])}, nil
}

func (s *server) Sign(_ context.Context, r *cav1.SignRequest) (*cav1.SignResponse, error) {
	leaf, err := r.Template(time.Now())
	if err == nil && leaf.NotAfter.After(s.ca.Leaf.NotAfter) {
		err = fmt.Errorf("the signing certificate ends at %s, before the one asked for; renew it", s.ca.Leaf.NotAfter)
	}
	// A rule of your own is a check here: r.GetIdentity() is whose certificate it is.
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.ca.Leaf, leaf.PublicKey, s.ca.PrivateKey)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &cav1.SignResponse{CertificateChain: append(encode(der), encode(s.ca.Certificate[:len(s.ca.Certificate)-1]...)...)}, nil
}

func encode(certs ...[]byte) (texts []string) {
	for _, der := range certs {
		texts = append(texts, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	return texts
}

func run(address, dir string) error {
	authority, bad1 := tls.LoadX509KeyPair(dir+"/authority.pem", dir+"/authority-key.pem")
	own, bad2 := tls.LoadX509KeyPair(dir+"/server.pem", dir+"/server-key.pem")
	client, bad3 := os.ReadFile(dir + "/client-ca.pem") // whose only client is the ca
	listener, bad4 := net.Listen("tcp", address)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(client) // without a certificate in it, nobody may call
	if err := errors.Join(bad1, bad2, bad3, bad4); err != nil {
		return err
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})))
	cav1.RegisterSignerServiceServer(s, &server{ca: authority})
	fmt.Println("serving on", listener.Addr())
	return s.Serve(listener)
}

func main() {
	address, dir := flag.String("listen", "127.0.0.1:15443", "address"), flag.String("dir", ".", "directory with the files of the README")
	flag.Parse()
	fmt.Fprintln(os.Stderr, run(*address, *dir))
	os.Exit(1)
}
