import time, sys, traceback
import numpy as np, cupy as cp, ml_dtypes, ggmlq as gq
from ggmlq.codes import scaling, CODES
from ggmlq.codes.scaling import Rule
from ggmlq.tiling import tiling
import importlib
who=importlib.import_module("ggmlq.cuda.quantize_scaled")
rng=np.random.default_rng()
def same(a,b,code):
    a=cp.asnumpy(a)
    if code.kind=="float":
        na,nb=np.isnan(code.table[a]),np.isnan(code.table[b]); ok=(na==nb)&((a==b)|na)
    else: ok=a==b
    return int((~ok).sum())
bad=0; n=0; t0=time.time()
for code in ("e4m3","e5m2","int8","int8_full","uint8","int16","uint16"):
    for tile in ((1,128),(128,128),(1,None),(None,None),(1,32),(3,7),(64,64),(1,100),(None,128),(5,None)):
        for dt in (np.float32,np.float16,"bfloat16",np.float64):
            if time.time()-t0>100: break
            R,C=(int(v) for v in (rng.integers(1,300),rng.choice([128,300,512,1000,1024])))
            x=(rng.standard_normal((R,C))*10.0**rng.uniform(-12,6,(R,1))).astype(np.float32)
            x.flat[rng.integers(0,x.size,x.size//50)]=rng.choice(np.float32([0,np.nan,np.inf,1e-40,-0.0,3e38]),x.size//50)
            x[rng.integers(0,R)]=0
            with np.errstate(all="ignore"):
                h=x.astype(ml_dtypes.bfloat16) if dt=="bfloat16" else x.astype(dt)
            z=bool(rng.integers(0,2)) and CODES[code].kind=="integer" and code!="int8"
            rule=Rule(CODES[code],rng.choice(["float32","e8m0"]),np.float32(rng.choice([0,1e-10])),"half_away" if CODES[code].kind=="integer" and rng.integers(0,2) else "half_even",z,rng.choice(["rows","columns"]))
            over=tiling(tile,R,C)
            want=scaling.quantize(h,over,rule)
            try:
                got=who.quantize(cp.asarray(h),over,rule)
                e=same(got.codes,want.codes,rule.code); s=int((~((cp.asnumpy(got.scales)==want.scales)|(np.isnan(want.scales) if want.scales.dtype!=np.uint8 else False))).sum())
                zz=0 if not z else int((cp.asnumpy(got.zeros)!=want.zeros).sum())
                g2=who.encode(cp.asarray(h),over,rule,cp.asarray(want.scales),None if not z else cp.asarray(want.zeros))
                e2=same(g2,want.codes,rule.code)
                n+=1
                if e or s or zz or e2: bad+=1; print("BAD",code,tile,dt,(R,C),rule[1:],e,s,zz,e2,flush=True)
            except Exception as err:
                bad+=1; print("FAIL",code,tile,dt,(R,C),rule[1:],type(err).__name__,str(err)[:300],flush=True)
print("quantizers",n,"bad",bad,time.time()-t0,flush=True)
def timed(f,xs):
    for x in xs: f(x)
    st=cp.cuda.Stream(non_blocking=True)
    with st:
        for x in xs: f(x)
        st.synchronize(); st.begin_capture()
        keep=[f(x) for x in xs]
        g=st.end_capture(); ts=[]
        for _ in range(9):
            a,b=cp.cuda.Event(),cp.cuda.Event(); a.record(); g.launch(st); b.record(); b.synchronize(); ts.append(cp.cuda.get_elapsed_time(a,b)/len(xs)*1e-3)
    return sorted(ts)[len(ts)//2]
for shape in ((4096,7168),(4096,16384)):
    for dt,size in ((cp.float32,4),(cp.float16,2),("bfloat16",2)):
        cnt=max(4,int(400e6/(shape[0]*shape[1]*size)))
        xs=[cp.random.standard_normal(shape,dtype=cp.float32) for _ in range(cnt)]
        xs=[x.astype(ml_dtypes.bfloat16 if dt=="bfloat16" else dt) for x in xs]
        for tile in ((1,128),(128,128),(1,None),(None,None)):
            for order in ("rows","columns"):
                if order=="columns" and tile!=(1,128): continue
                for code in ("e4m3","int8"):
                    over=tiling(tile,*shape); rule=Rule(CODES[code],"float32",np.float32(1e-10),"half_even",False,order)
                    try:
                        t=timed(lambda x: who.quantize(x,over,rule),xs)
                        nb=shape[0]*shape[1]*(size+1)+4*over.shape[0]*over.shape[1]
                        print(shape,dt if dt=="bfloat16" else dt.__name__,tile,order,code,f"{t*1e6:.1f} us {nb/t/1e9:.0f} GB/s",flush=True)
                    except Exception as err: print("FAIL timing",shape,dt,tile,code,type(err).__name__,str(err)[:200],flush=True)
x=xs[0]; 
ts=timed(lambda x: x.copy(),xs); print("copy",2*x.nbytes/ts/1e9)
