module fairlead.dev/samples

go 1.26.0

require (
	fairlead.dev/proto v0.0.0
	github.com/google/go-cmp v0.7.0
	github.com/spf13/cobra v1.10.2
	google.golang.org/grpc v1.84.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace fairlead.dev/proto => ../proto
